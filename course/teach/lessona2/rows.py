"""Rows: the result of a query, and how two results differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

MOST_SHOWN = 6  # rows in a message
NULL = "a LEFT JOIN (or SUM over no rows) gives NULL; COALESCE(x, 0) makes it 0"


@dataclass(frozen=True)
class Rows:
    """Rows of a query's result. columns: their names. rows: their values, in the columns' order."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def in_columns(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the rows with their values in this order of the columns."""
        places = [self.columns.index(name) for name in columns]
        return [tuple(_plain(row[place]) for place in places) for row in self.rows]


def explain_rows(is_ordered: bool) -> Callable[[Any, Any], str | None]:
    """Make a comparison of results: columns, then rows by their first value, then their order, if it was asked for.

    The order of the columns does not matter, nor does the type of a number.
    """

    def explain(got: Rows, want: Rows) -> str | None:
        if sorted(got.columns) != sorted(want.columns):
            return (
                f"your query returns {_names(got.columns)}, expected {_names(want.columns)}: {_of_columns(got, want)}"
            )
        own = got.in_columns(want.columns)
        right = want.rows if is_ordered else sorted(want.rows, key=_key)
        if not _same(sorted(own, key=_key), sorted(right, key=_key)):
            return _first_difference(own, right, want.columns)
        if is_ordered and not _same(own, right):
            return f"the rows are right, their order is not: you return {_listed(own)}, expected {_listed(right)}"
        return None

    return explain


def _first_difference(own: list[tuple[Any, ...]], right: list[tuple[Any, ...]], columns: Sequence[str]) -> str:
    if len(right) == 1 and not isinstance(right[0][0], str):  # one row of numbers
        if len(own) != 1:
            return f"your query returns {len(own)} rows, expected 1"
        return _values(own[0], right[0], columns)
    times = Counter(_value(row[0]) for row in own)
    if twice := [name for name in times if times[name] > 1]:
        return f"there are several rows for {twice[0]}, expected 1"
    got, want = ({_value(row[0]): row for row in rows} for rows in (own, right))
    if missing := [name for name in want if name not in got]:
        return f"the row {_shown(want[missing[0]], columns)} is missing"
    if surplus := [name for name in got if name not in want]:
        return f"the row {_shown(got[surplus[0]], columns)} should not be there"
    name = next(name for name in want if not _same([got[name]], [want[name]]))
    return f"{name}: {_values(got[name][1:], want[name][1:], columns[1:])}"


def _values(got: Sequence[Any], want: Sequence[Any], columns: Sequence[str]) -> str:
    """Name the first value that differs."""
    name, own, right = next(
        (name, own, right) for name, own, right in zip(columns, got, want, strict=True) if not _equal(own, right)
    )
    return f"{name} is {_value(own)}, expected {_value(right)}{f': {NULL}' if own is None else ''}"


def _same(some: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]]) -> bool:
    return len(some) == len(others) and all(
        all(map(_equal, one, other)) for one, other in zip(some, others, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _key(row: Sequence[Any]) -> list[str]:
    return [f"{value:.9g}" if isinstance(value, (int, float)) else str(value) for value in row]


def _of_columns(got: Rows, want: Rows) -> str:
    """Say what is wrong with the columns."""
    surplus = list((Counter(got.columns) - Counter(want.columns)).elements())
    if set(want.columns) - set(got.columns):
        return "`AS` names a column"
    noun = "one column" if len(surplus) == 1 else f"{len(surplus)} columns"
    return f"{noun} too many: {', '.join(f'`{name}`' for name in surplus)}"


def _names(columns: Sequence[str]) -> str:
    noun = "column" if len(columns) == 1 else "columns"
    return f"the {noun} {', '.join(f'`{name}`' for name in columns)}"


def _listed(rows: Sequence[tuple[Any, ...]]) -> str:
    shown = ", ".join(" ".join(map(_value, row)) for row in rows[:MOST_SHOWN])
    return f"{shown}, ..." if len(rows) > MOST_SHOWN else shown


def _shown(row: Sequence[Any], columns: Sequence[str]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in zip(columns, row, strict=True))


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
