"""The walk of the online softmax: its text, and the numbers of its frames."""

from __future__ import annotations

from math import exp

import pytest
import torch

from course.teach import walk_online_softmax
from course.teach.views.online_softmax import running

SCORES = [0.5, 1.2, -0.3, 0.8, 2.6]
VALUES = [[1.0, -0.5], [0.4, 0.8], [-0.6, 0.1], [0.3, 0.3], [-1.0, 0.0]]


def walk(block_size=2, scores=SCORES):
    return walk_online_softmax(torch.tensor(scores), values=torch.tensor(VALUES), block_size=block_size)


def test_each_block_is_told_with_what_shrinks():
    assert repr(walk()) == (
        "block 1: m = 1.200; l = 1.497, a = [0.897, 0.552]\n"
        "block 2: m stays 1.200; l = 2.390, a = [0.964, 0.775]\n"
        "block 3: m from 1.200 to 2.600, l and a times 0.247; l = 1.589, a = [-0.762, 0.191]\n"
        "a / l = [-0.480, 0.120]; largest difference from softmax(scores) @ values: 0.000000"
    )


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 9])
def test_a_frame_has_the_recurrence_and_the_last_what_it_equals(block_size):
    states, page = running(SCORES, VALUES, block_size), walk(block_size)
    for step, (old, new) in enumerate(zip(states, states[1:], strict=False), 1):
        texts = [cell.text for cell in page.frames[step].panels[1].cells]
        assert page.frames[step].heading == f"block {step} of {len(states) - 1}: m = {new.top:.2f}"
        for before, after in zip((old.total, *old.acc), (new.total, *new.acc), strict=True):
            factor = 1 if step == 1 else exp(old.top - new.top)
            numbers = [f"{number + 0.0:.3f}" for number in (before, factor, after - before * factor, after)]
            said = "{}|× {}|+ {}|= {}".format(*numbers).replace("-0.000", "0.000").split("|")
            assert any(texts[i : i + 4] == said for i in range(len(texts)))
    for one in (torch.tensor(SCORES).double().softmax(0) @ torch.tensor(VALUES).double()).tolist():
        assert {f"{one:.3f}", f"= {one:.3f}"} <= set(page.texts(len(states)))


def test_a_frame_says_whether_anything_shrinks():
    before, *said = (frame.says for frame in walk().frames)
    assert before.startswith("Nothing is read yet")
    assert said[0].startswith("Nothing was summed up before it") and "nothing shrinks" in said[1]
    assert said[2] == "m grows from 1.20 to 2.60: all that was summed up shrinks by exp(1.20 - 2.60) = 0.247."
    assert said[3].startswith("The same as one softmax over all scores")


def test_the_still_is_of_the_first_block_that_shrinks_what_was_before():
    assert walk().shown == 3
    assert walk(scores=[3.0, *SCORES[1:]]).shown == 4, "no block shrinks anything: the result"


def test_a_weight_fills_its_box_and_later_blocks_have_none():
    weights = [cell.filled for cell in walk().frames[2].panels[0].cells if cell.row == 1]
    assert weights[1] == 1 and weights[0] == pytest.approx(exp(0.5 - 1.2), abs=1e-6) and weights[4] == 0


def test_what_cannot_be_drawn_is_refused():
    scores, values = torch.zeros(4), torch.zeros(4, 2)
    for wrong, message in (
        ((torch.zeros(25), values, 2), r"scores must be 1 to 24 numbers \[T\], got shape \[25\]"),
        ((scores, torch.zeros(3, 2), 2), r"values must be \[4, D\], D from 1 to 4, got shape \[3, 2\]"),
        ((scores, torch.zeros(4, 5), 2), r"values must be \[4, D\], D from 1 to 4, got shape \[4, 5\]"),
        ((torch.tensor([1.0, float("inf"), 0, 0]), values, 2), "scores must be finite, got inf"),
        ((scores, values, 0), "block_size must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            walk_online_softmax(*wrong)
