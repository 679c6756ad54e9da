"""Lesson 06: sentences on builds follow from the measured ratios; a schedule's request is told as it went."""

from __future__ import annotations

import pandas as pd
import pytest

from course.teach import build_ratio, run_schedule, say_builds
from roseinfer.display.table import Table
from stages import BlockTable, BlockTableCache


def builds(away, edge):
    rows = [
        {"batch": n, "step": step, "stage": stage, "speed": speed}
        for n in (16, 64)
        for step, ratio in (("away from an edge", away), ("at an edge", edge))
        for stage, speed in (("a", 1.0), ("b", ratio))
    ]
    return Table(pd.DataFrame(rows), exact=[])


def test_a_loss_at_an_edge_is_told():
    said = say_builds(builds(8.0, 0.5))
    assert repr(said) == "computed from this run: how fast the tables are built"
    assert said.sentences == (
        "**Away from an edge**, speed of b against a: ×8.00 for 16 sequences and ×8.00 for 64 sequences.",
        "**At an edge**, speed of b against a: ×0.50 for 16 sequences and ×0.50 for 64 sequences.",
        "It is slower for 16 sequences at an edge, 64 sequences at an edge.",
    )


def test_no_loss_is_told_as_none():
    assert say_builds(builds(8.0, 0.95)).sentences[-1] == "It is slower in none of these rows."


def test_the_ratio_of_a_batch():
    assert build_ratio(builds(8.0, 0.5), 64) == 8.0 and build_ratio(builds(8.0, 0.5), 16, "at an edge") == 0.5
    with pytest.raises(ValueError, match=r"of \[16, 64\], got 8 and 'away from an edge'"):
        build_ratio(builds(8.0, 0.5), 8)


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
