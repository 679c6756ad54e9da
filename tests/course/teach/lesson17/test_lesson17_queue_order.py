"""The queue that a reader orders: what the picture shows is the run of lesson 17's stage, for any order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.teach import order_queue, record_run, work
from course.teach.lesson17.queue_order import presets, run, told
from stages import Overlap

OUTPUTS = (9, 3, 2, 7, 3, 7, 4, 9, 3, 2, 9, 18)


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


def test_each_policy_is_a_choice_and_the_readers_order_comes_first():
    policies = order_queue(OUTPUTS, 4)
    assert list(policies.lengths) == list(presets(OUTPUTS))
    assert policies.texts(0)[0] == "first come: 32 steps, 62 steps of waiting"
    own = order_queue(OUTPUTS, 4, [11])
    assert own.texts(0)[0].startswith("yours: ") and repr(own) == repr(policies)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_requests_that_an_order_leaves_out_follow_as_they_came(data):
    outputs = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    slots, order = data.draw(st.integers(1, 3)), data.draw(st.permutations(range(len(outputs))))
    order = order[: data.draw(st.integers(1, len(outputs)))]
    whole = [*order, *(i for i in range(len(outputs)) if i not in order)]
    picture = order_queue(outputs, slots, order)
    assert picture.texts(0)[0] == f"yours: {told(*run([outputs[i] for i in whole], slots))}"
    queue, lanes = picture.frames[0].panels
    assert [cell.text for cell in queue.cells[::2]] == whole
    assert sum(cell.width for cell in lanes.cells) == sum(outputs)


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


@pytest.mark.parametrize("order", [[0, 0], [2], [-1]])
def test_an_order_that_cannot_be_is_told(order):
    with pytest.raises(ValueError, match="order must be"):
        order_queue([1, 2], 1, order)
