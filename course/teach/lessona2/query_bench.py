"""run_query: a learner's query on many small traces, in one database; and how two results differ."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from roseinfer.arguments import counted
from roseinfer.profiling.traces.read_only import lock, result_of
from roseinfer.profiling.traces.sql_errors import QueryError

from ..exercises.wrong import Wrong
from .events import Event

if TYPE_CHECKING:
    import duckdb

COLUMNS = "id BIGINT, ts BIGINT, dur BIGINT, cat VARCHAR, name VARCHAR, tid BIGINT, pid BIGINT, args JSON"
NAMES = ", ".join(column.split()[0] for column in COLUMNS.split(", "))
MOST_SHOWN = 6  # rows in a message
NULL = "a LEFT JOIN (or SUM over no rows) gives NULL; COALESCE(x, 0) makes it 0"

Row = tuple[Any, ...]


class Rows(NamedTuple):
    """Rows of a query's result. columns: their names. rows: their values, in the columns' order."""

    columns: tuple[str, ...]
    rows: list[Row]


def run_query(answer: Any, events: Sequence[Event]) -> Rows:
    """Return the rows of a query, a string of SQL, on the trace of these events, which are in the order of their ids.

    Raises Wrong for anything else, and with what the database says.
    """
    if not isinstance(answer, str):
        raise Wrong(f"expected a query, which is a string of SQL, got {type(answer).__name__}")
    if not answer.strip():
        raise Wrong("expected a query, got an empty string")
    return _rows(answer, tuple(events))


def run_known(query: str, events: Sequence[Event]) -> Rows:
    """Return the rows of a query of the course, which is run once on each trace."""
    return _known(query, tuple(events))


@cache
def _known(query: str, events: tuple[Event, ...]) -> Rows:
    return _rows(query, events)


def _rows(query: str, events: tuple[Event, ...]) -> Rows:
    db, number = _database(), _number(events)
    db.execute(f"CREATE OR REPLACE VIEW slice AS SELECT {NAMES} FROM every_trace WHERE number = {number}")
    try:
        with result_of(query, db) as result:
            return Rows(tuple(column[0].lower() for column in result.description), result.fetchall())
    except QueryError as error:
        place = f", in the line `{error.line}`" if error.line else ""
        raise Wrong(f"the database says: {' '.join(error.says.split())}{place}") from None
    except ValueError as error:
        raise Wrong(str(error)) from None


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Open one database for all traces: one for each would have its own threads, and take longer to open than to ask.

    It is dropped before Python ends, when DuckDB reports open connections as leaks.
    """
    import duckdb

    db = duckdb.connect(":memory:", config={"threads": 1})
    db.execute(f"CREATE TABLE every_trace (number BIGINT, {COLUMNS})")
    lock(db)
    atexit.register(_database.cache_clear)
    return db


@cache
def _number(events: tuple[Event, ...]) -> int:
    """Insert a trace into the table, and return its number there."""
    number = _number.cache_info().currsize
    rows = [
        (number, id, round(1000 * event.ts), round(1000 * event.dur), event.cat, event.name, event.tid, 1, None)
        for id, event in enumerate(events)
    ]
    if rows:
        places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(rows))
        _database().execute(f"INSERT INTO every_trace VALUES {places}", [value for row in rows for value in row])
    return number


def explain_rows(is_ordered: bool) -> Callable[[Any, Any], str | None]:
    """Make a comparison of results: columns, then rows, then their order, if it was asked for.

    The order of the columns does not matter, nor does the type of a number.
    """

    def explain(got: Rows, want: Rows) -> str | None:
        if sorted(got.columns) != sorted(want.columns):
            too_many = len(got.columns) > len(want.columns)
            return (
                f"your query returns the columns {', '.join(got.columns)}, expected {', '.join(want.columns)}: "
                f"{'leave out the others' if too_many else '`AS` names a column'}"
            )
        own, right = (_in_columns(rows, want.columns) for rows in (got, want))
        missing, surplus = (list((Counter(a) - Counter(b)).elements()) for a, b in ((right, own), (own, right)))
        if missing or surplus:
            return _first_difference(
                missing, surplus, f"{counted(len(own), 'row')}, expected {len(right)}", want.columns
            )
        if is_ordered and own != right:
            return f"the rows are right, their order is not: you return {_listed(own)}, expected {_listed(right)}"
        return None

    return explain


def _in_columns(got: Rows, columns: Sequence[str]) -> list[Row]:
    """Return the rows with their values in this order of the columns. Times are rounded to nine digits."""
    places = [got.columns.index(name) for name in columns]
    return [tuple(_plain(row[place]) for place in places) for row in got.rows]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else float(f"{value:.9g}")


def _first_difference(missing: list[Row], surplus: list[Row], counts: str, columns: Sequence[str]) -> str:
    """Name the first row that is missing, beside one of the same name (or, of numbers alone, the only one) if any."""
    row = (missing or surplus)[0]
    is_named = isinstance(row[0], str)
    other = next((one for one in surplus if not is_named or one[0] == row[0]), None)
    if not missing or other is None:
        verb = "is missing" if missing else "should not be there"
        return f"the row {_shown(row, columns)} {verb} ({counts})"
    null = f": {NULL}" if None in other else ""
    return f"you return the row {_shown(other, columns)}, expected {_shown(row, columns)}{null}"


def _listed(rows: Sequence[Row]) -> str:
    shown = ", ".join(" ".join(map(_value, row)) for row in rows[:MOST_SHOWN])
    return f"{shown}, ..." if len(rows) > MOST_SHOWN else shown


def _shown(row: Row, columns: Sequence[str]) -> str:
    return ", ".join(f"{name}={_value(value, repr)}" for name, value in zip(columns, row, strict=True))


def _value(value: Any, text: Callable[[str], str] = str) -> str:
    return "NULL" if value is None else text(value) if isinstance(value, str) else f"{value:.9g}"
