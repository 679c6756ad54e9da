"""QueryBench: runs a learner's query on many small traces, in one database."""

from __future__ import annotations

import atexit
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from roseinfer.profiling.traces.read_only import lock, result_of
from roseinfer.profiling.traces.sql_errors import QueryError

from ..exercises.wrong import Wrong
from .events import Event
from .rows import Rows

COLUMNS = "id BIGINT, ts BIGINT, dur BIGINT, cat VARCHAR, name VARCHAR, tid BIGINT, pid BIGINT, args JSON"
NAMES = ", ".join(column.split()[0] for column in COLUMNS.split(", "))
LAST_LIMIT = re.compile(r"\bLIMIT\s+\d+\s*;?\s*$", re.IGNORECASE)


class QueryBench:
    """A database of many small traces: all lie in one table, and `slice` is a view of one of them.

    A database for each would have threads of its own, and take longer to open than its query to run.
    """

    def __init__(self) -> None:
        import duckdb

        self._db = duckdb.connect(":memory:", config={"threads": 1})
        self._db.execute(f"CREATE TABLE every_trace (number BIGINT, {COLUMNS})")
        lock(self._db)
        self._numbers: dict[tuple[Event, ...], int] = {}

    def rows(self, query: str, events: Sequence[Event]) -> Rows:
        """Return the result of a query on the trace of these events, which are in the order of their ids.

        Raises Wrong with what the database says.
        """
        number = self._number(tuple(events))
        self._db.execute(f"CREATE OR REPLACE VIEW slice AS SELECT {NAMES} FROM every_trace WHERE number = {number}")
        try:
            with result_of(query, self._db) as result:
                columns = tuple(column[0].lower() for column in result.description)
                return Rows(columns, [tuple(row) for row in result.fetchall()])
        except QueryError as error:
            place = f", in the line `{error.line}`" if error.line else ""
            raise Wrong(f"the database says: {' '.join(error.says.split())}{place}") from None
        except ValueError as error:
            raise Wrong(str(error)) from None

    def _number(self, events: tuple[Event, ...]) -> int:
        if events not in self._numbers:
            number = self._numbers[events] = len(self._numbers)
            rows = [
                (number, id, round(1000 * event.ts), round(1000 * event.dur), event.cat, event.name, event.tid, 1, None)
                for id, event in enumerate(events)
            ]
            if rows:
                places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(rows))
                self._db.execute(f"INSERT INTO every_trace VALUES {places}", [value for row in rows for value in row])
        return self._numbers[events]


@cache
def bench() -> QueryBench:
    """Return this process's bench. It is dropped before Python ends, when DuckDB reports open connections as leaks."""
    atexit.register(bench.cache_clear)
    return QueryBench()


def run_query(answer: Any, events: Sequence[Event]) -> Rows:
    """Return the rows of an answer's query. answer: a string of SQL, or a function without arguments that gives one."""
    return bench().rows(_query_of(answer), events)


def without_limit(answer: Any) -> str | None:
    """Return the query of an answer without the LIMIT that it ends in; None for one that has none."""
    query, number = LAST_LIMIT.subn("", _query_of(answer))
    return query if number else None


def _query_of(answer: Any) -> str:
    query = answer() if callable(answer) else answer
    if not isinstance(query, str):
        raise Wrong(f"expected a query, which is a string of SQL, got {type(query).__name__}")
    if not query.strip():
        raise Wrong("expected a query, got an empty string")
    return query
