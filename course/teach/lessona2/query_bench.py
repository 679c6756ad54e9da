"""run_query: a learner's query on many small traces, in one database; and how two results differ."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

from roseinfer.arguments import counted
from roseinfer.profiling.traces.read_only import QueryError, lock, result_of

from ..exercises.wrong import Wrong
from .events import Event

if TYPE_CHECKING:
    import duckdb

COLUMNS = "id BIGINT, ts BIGINT, dur BIGINT, cat VARCHAR, name VARCHAR, tid BIGINT, pid BIGINT, args JSON"
SECONDS = 10  # that a query may take: on these traces any takes milliseconds, but a recursive one may never end

Row = tuple[Any, ...]


class Rows(NamedTuple):
    """Result of a query: the names of its columns, and its rows, with values in that order."""

    columns: tuple[str, ...]
    rows: list[Row]


def run_query(answer: Any, events: Sequence[Event]) -> Rows:
    """Return the rows of a query on the trace of these events. Raises Wrong with what the database says."""
    if not isinstance(answer, str):
        raise Wrong(f"expected a query, which is a string of SQL, got {type(answer).__name__}")
    return _rows(answer, tuple(events))


@cache  # the queries of the course are run on the same traces for every answer
def _rows(query: str, events: tuple[Event, ...]) -> Rows:
    db = _database()
    db.execute(f"CREATE OR REPLACE TABLE slice ({COLUMNS})")
    rows = [
        f"({id}, {1000 * event.ts:.0f}, {1000 * event.dur:.0f}, '{event.cat}', '{event.name}', {event.tid}, 1, NULL)"
        for id, event in enumerate(events)
    ]
    if rows:
        db.execute(f"INSERT INTO slice VALUES {', '.join(rows)}")
    limit = Timer(SECONDS, db.interrupt)
    limit.start()
    try:
        with result_of(query, db) as result:
            return Rows(tuple(column[0].lower() for column in result.description), result.fetchall())
    except QueryError as error:
        place = f", in the line `{error.line}`" if error.line else ""
        raise Wrong(f"the database says: {' '.join(error.says.split())}{place}") from None
    except ValueError as error:
        raise Wrong(str(error)) from None
    finally:
        limit.cancel()


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
    """Make a comparison of results, whose columns may be in any order: names, then rows, then their order if asked."""

    def explain(got: Rows, want: Rows) -> str | None:
        if sorted(got.columns) != sorted(want.columns):
            columns = f"the columns {', '.join(got.columns)}, expected {', '.join(want.columns)}"
            return f"your query returns {columns}: `AS` names a column"
        own, right = (_in_columns(rows, want.columns) for rows in (got, want))
        missing, surplus = (sorted((a - b).elements(), key=str) for a, b in permutations(map(Counter, (right, own))))
        if missing or surplus:
            told = [f"the row {row} is missing" for row in missing[:1]]
            told += [f"the row {row} should not be there" for row in surplus[:1]]
            return f"{', and '.join(told)} ({counted(len(own), 'row')}, expected {len(right)})"
        if is_ordered and own != right:
            first = next(i for i, row in enumerate(own) if row != right[i])
            return f"the rows are right, their order is not: row {first} is {own[first]}, expected {right[first]}"
        return None

    return explain


def _in_columns(got: Rows, columns: Sequence[str]) -> list[Row]:
    """Return the rows with their values in this order of the columns."""
    places = [got.columns.index(name) for name in columns]
    return [tuple(_plain(row[place]) for place in places) for row in got.rows]


def _plain(value: Any) -> Any:
    """Round a number to nine digits, and make it an int where it is whole."""
    if value is None or isinstance(value, str):
        return value
    rounded = float(f"{value:.9g}")
    return int(rounded) if rounded.is_integer() else rounded
