"""run_query: a learner's query on many small traces, in one database; and how two results differ."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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


@cache  # the queries of the course are run on the same traces for every answer
def _rows(query: str, events: tuple[Event, ...]) -> Rows:
    db = _database()
    db.execute(f"CREATE OR REPLACE TABLE slice ({COLUMNS})")
    if events:
        times = [(round(1000 * event.ts), round(1000 * event.dur)) for event in events]
        rows = [(id, *times[id], event.cat, event.name, event.tid, 1, None) for id, event in enumerate(events)]
        places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * len(rows))
        db.execute(f"INSERT INTO slice VALUES {places}", [value for row in rows for value in row])
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
    lock(db)
    atexit.register(_database.cache_clear)
    return db


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
            return f"{_first_difference(missing, surplus)} ({counted(len(own), 'row')}, expected {len(right)})"
        if is_ordered and own != right:
            shown = (", ".join(map(_shown, rows[:MOST_SHOWN])) for rows in (own, right))
            return "the rows are right, their order is not: you begin with {}, expected {}".format(*shown)
        return None

    return explain


def _in_columns(got: Rows, columns: Sequence[str]) -> list[Row]:
    """Return the rows with their values in this order of the columns. Times are rounded to nine digits."""
    places = [got.columns.index(name) for name in columns]
    return [tuple(_plain(row[place]) for place in places) for row in got.rows]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else float(f"{value:.9g}")


def _first_difference(missing: list[Row], surplus: list[Row]) -> str:
    """Tell the first row that is missing, beside one of the same name (or, of numbers alone, the only one) if any."""
    if not missing:
        return f"the row {_shown(surplus[0])} should not be there"
    name = missing[0][0]
    for other in surplus:
        if other[0] == name or not isinstance(name, str):
            null = f": {NULL}" if None in other else ""
            return f"you return the row {_shown(other)}, expected {_shown(missing[0])}{null}"
    return f"the row {_shown(missing[0])} is missing"


def _shown(row: Iterable[Any]) -> str:
    values = ("NULL" if value is None else repr(value) if isinstance(value, str) else f"{value:.9g}" for value in row)
    return f"({', '.join(values)})"
