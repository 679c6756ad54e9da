"""The tables that every form of a report shows: their columns, and how values are written.

A value under "post" that the post does not state has a mark, and `notes` says below the table what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roseinfer.display.number_text import exact, share, significant, verbatim
from roseinfer.display.text_table import Column, TextTable, are_numbers

from ..data import KINDS, Source
from .content import Exact, Fact, Grid, Time

MISSING = "–"
MARKS = "†‡§¶"


def facts_table(facts: Sequence[Fact]) -> TextTable:
    """Make the table of facts, above `notes`. The column `why` is left out where no fact needs one."""
    columns: list[Column | str] = ["what", _post_column(facts), Column("here", verbatim), "verdict"]
    posted = _posted(facts, verbatim)
    rows: list[tuple[Exact | None, ...]] = [(f.what, p, f.here, f.verdict) for f, p in zip(facts, posted, strict=True)]
    if any(fact.why for fact in facts):
        columns.append("why")
        rows = [(*row, fact.why) for row, fact in zip(rows, facts, strict=True)]
    return TextTable.of(columns, rows)


def posted_text(fact: Fact) -> str:
    """Write the post's value where no notes follow: "448 (computed)"."""
    source = fact.source
    return verbatim(fact.post) + ("" if source is None or source.is_stated else f" ({KINDS[source.kind]})")


def notes(rows: Sequence[Fact | Time]) -> list[str]:
    """Explain each mark of the table, one a line."""
    return [f"{mark} {source}" for source, mark in marks(rows).items()]


def marks(rows: Sequence[Fact | Time]) -> dict[Source, str]:
    """Return a mark for each source of values that the post does not state, in order of appearance."""
    known = (row.source for row in rows if row.post is not None)
    sources = dict.fromkeys(source for source in known if source and not source.is_stated)
    return {source: MARKS[i % len(MARKS)] * (1 + i // len(MARKS)) for i, source in enumerate(sources)}


def _posted(rows: Sequence[Fact | Time], show: Callable[[Any], str]) -> list[str | None]:
    """Write the column "post": values with their marks."""
    of: Mapping[Any, str] = marks(rows)
    return [None if row.post is None else " ".join(filter(None, (show(row.post), of.get(row.source)))) for row in rows]


def _post_column(rows: Sequence[Fact | Time]) -> Column:
    return Column("post", right=are_numbers([row.post for row in rows]))


def times_table(times: Sequence[Time]) -> TextTable:
    """Make the table of times, above `notes`. The two columns of the floor are left out where no row has one."""
    columns = [
        Column("what"),
        Column("unit"),
        Column("post", right=True),
        Column("here", significant, right=True),
        Column("here ÷ post", lambda ratio: significant(ratio, 3), right=True),
    ]
    posted = _posted(times, exact)
    rows: list[tuple[Any, ...]] = [(t.what, t.unit, p, t.here, t.ratio) for t, p in zip(times, posted, strict=True)]
    if any(t.floor is not None for t in times):
        columns += [Column("floor", significant, right=True), Column("of floor", share, right=True)]
        rows = [(*row, t.floor, t.of_floor) for row, t in zip(rows, times, strict=True)]
    return TextTable.of(columns, rows, MISSING)


def grid_table(grid: Grid) -> TextTable:
    return TextTable.of([Column(name, _grid_value) for name in grid.columns], grid.rows, MISSING)


def _grid_value(value: Exact) -> str:
    return exact(value) if isinstance(value, float) else verbatim(value)
