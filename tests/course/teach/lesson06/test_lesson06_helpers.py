"""Lesson 06: a schedule's request is told as it went."""

from __future__ import annotations

import pytest

from course.teach import run_schedule
from stages import BlockTable, BlockTableCache


@pytest.mark.parametrize("stage", [BlockTable, BlockTableCache], ids=lambda stage: stage.name)
def test_a_request_that_came_back_reads_its_own_blocks(small, stage):
    told = run_schedule(stage, small, "ABACBA")
    assert told == {
        "stage": stage.name,
        "A's blocks": [2, 1],
        "A's row": [2, 1],
        "A's tokens": "equal to the reference",
    }


@pytest.mark.parametrize("schedule", ["AB A", "AA", "B"])
def test_a_schedule_at_whose_end_a_holds_nothing_is_refused(small, schedule):
    with pytest.raises(ValueError, match="A an odd number of times, got "):
        run_schedule(BlockTable, small, schedule)
