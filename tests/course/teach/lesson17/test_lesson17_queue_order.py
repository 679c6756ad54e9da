"""The queue that a reader orders: what the page computes is the run of lesson 17's stage, for any order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.teach import order_queue, record_run, work
from course.teach.lesson17.queue_order import presets, run, told
from stages import Overlap

OUTPUTS = (9, 3, 2, 7, 3, 7, 4, 9, 3, 2, 9, 18)


def yours(page, **ranks):
    [said] = [text for text in page.texts(**ranks) if text.startswith("this order: ")]
    return said.removeprefix("this order: ")


@pytest.mark.parametrize("order", presets(OUTPUTS).values(), ids=presets(OUTPUTS))
def test_an_order_takes_as_long_as_on_the_stage(small, order):
    outputs = [OUTPUTS[i] for i in order]
    stage = Overlap(small, num_blocks=32, block_size=16, max_num_seqs=4)
    recorded = record_run(stage, work(small, [(0, 1, n) for n in outputs]))
    waited = sum(request.times.first_scheduled for request in recorded.requests)
    assert run(outputs, 4) == (len(recorded.steps), waited)


def test_the_text_has_the_three_policies():
    assert repr(order_queue([2, 1, 3], 1)) == (
        "3 requests, 1 at a time. first come: 8 steps, 6 steps of waiting; "
        "shortest output first: 8 steps, 5 steps of waiting; "
        "longest output first: 8 steps, 9 steps of waiting"
    )


def test_the_page_begins_with_first_come_and_its_picture_shows_the_longest_first():
    page = order_queue(OUTPUTS, 4)
    assert yours(page) == told(*run(OUTPUTS, 4)) == "32 steps, 62 steps of waiting"
    assert yours(page, **page.still) == "21 steps, 111 steps of waiting"


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_clicks_give_the_order_and_the_rest_follow_as_they_came(data):
    outputs = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    slots, clicked = data.draw(st.integers(1, 3)), data.draw(st.permutations(range(len(outputs))))
    clicked = clicked[: data.draw(st.integers(0, len(outputs)))]
    order = [*clicked, *(i for i in range(len(outputs)) if i not in clicked)]
    said = yours(order_queue(outputs, slots), **{f"r{i}": rank for rank, i in enumerate(clicked, 1)})
    assert said == told(*run([outputs[i] for i in order], slots))


@pytest.mark.parametrize(
    ("outputs", "slots", "message"),
    [
        ([], 1, "outputs must be of 1 to 16 requests, got 0"),
        ([1] * 17, 1, "outputs must be of 1 to 16 requests, got 17"),
        ([1, 0], 1, "outputs must be an integer of at least 1, got 0"),
        ([1], 0, "slots must be an integer of at least 1, got 0"),
    ],
)
def test_bad_input_is_told(outputs, slots, message):
    with pytest.raises(ValueError, match=message):
        order_queue(outputs, slots)
