"""The tables of a report, as every one of its faces shows them: which columns there are, and how values are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roseinfer.display.cells import Cells, Column
from roseinfer.display.number_text import exact, share, significant, verbatim

from .content import Exact, Fact, Grid, NotRun, Time

MISSING = "–"


def facts_table(facts: Sequence[Fact]) -> Cells:
    """The column `why` is left out where no fact needs one."""
    columns = ["what", *_post_and_here(), "verdict"]
    rows: list[tuple[Exact, ...]] = [(fact.what, fact.post, fact.here, fact.verdict) for fact in facts]
    if any(fact.why for fact in facts):
        columns.append("why")
        rows = [(*row, fact.why) for row, fact in zip(rows, facts, strict=True)]
    return Cells.of(columns, rows)


def different_table(different: Sequence[tuple[str, Fact]]) -> Cells:
    """Of PostReport.different."""
    rows = [(part, fact.what, fact.post, fact.here, fact.why) for part, fact in different]
    return Cells.of(["part", "what", *_post_and_here(), "why"], rows)


def _post_and_here() -> list[Column]:
    return [Column("post", verbatim), Column("here", verbatim)]


def times_table(times: Sequence[Time]) -> Cells:
    """The two columns of the floor are left out where no row has one."""
    columns = [
        Column("what"), Column("unit"), Column("post", exact, right=True), Column("here", significant, right=True),
        Column("here ÷ post", lambda ratio: significant(ratio, 3), right=True),
    ]  # fmt: skip
    rows: list[tuple[Any, ...]] = [(t.what, t.unit, t.post, t.here, t.ratio) for t in times]
    if any(t.floor is not None for t in times):
        columns += [Column("floor", significant, right=True), Column("of floor", share, right=True)]
        rows = [(*row, t.floor, t.of_floor) for row, t in zip(rows, times, strict=True)]
    return Cells.of(columns, rows, MISSING)


def grid_table(grid: Grid) -> Cells:
    return Cells.of([Column(name, _grid_value) for name in grid.columns], grid.rows, MISSING)


def _grid_value(value: Exact) -> str:
    return exact(value) if isinstance(value, float) else verbatim(value)


def not_run_table(parts: Sequence[NotRun]) -> Cells:
    return Cells.of(["what", "needs"], [(part.what, part.needs) for part in parts])
