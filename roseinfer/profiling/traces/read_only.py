"""Read queries on a DuckDB database that a stranger's query cannot write to, nor leave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

SETTINGS = (
    "python_enable_replacements=false",
    "enable_external_access=false",
    "enable_progress_bar=false",
)


QUOTES = " (text stands in single quotes; double quotes name a column)"


class QueryError(ValueError):
    """DuckDB's message, with a caret under the place in the query. says: without it. line: of the query, if known."""

    def __init__(self, error: duckdb.Error, query: str) -> None:
        self.says, _, place = str(error).partition("\n\nLINE ")
        self.line = place.partition("\n")[0].partition(": ")[2].strip()
        column = re.search(r'column "(.*?)" not found', self.says)
        if column and f'"{column[1]}"' in query:
            self.says += QUOTES
        super().__init__(self.says + (f"\n\nLINE {place}" if place else ""))


def lock(db: duckdb.DuckDBPyConnection) -> None:
    """Close the database to files, addresses and Python variables, for good."""
    for setting in SETTINGS:
        db.execute(f"SET {setting}")
    db.execute("SET lock_configuration=true")


@contextmanager
def result_of(query: str, db: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield the result of one read query, to be fetched inside. db: locked.

    Raises QueryError with DuckDB's message, and ValueError for anything but one SELECT.
    """
    import duckdb

    if not isinstance(query, str):
        raise ValueError(f"query must be a string of SQL, got {query!r}")
    try:
        statements = db.extract_statements(query)
        kinds = duckdb.StatementType
        # PIVOT is parsed as MULTI; whatever else that may hold, the transaction below cannot write.
        if len(statements) != 1 or statements[0].type not in (kinds.SELECT, kinds.EXPLAIN, kinds.MULTI):
            raise ValueError(f"query must be one SELECT, got:\n{query.strip()}")
        db.execute("BEGIN TRANSACTION READ ONLY")
        try:
            yield db.execute(query)
        finally:
            db.execute("ROLLBACK")
    except duckdb.Error as error:
        raise QueryError(error, query) from error
