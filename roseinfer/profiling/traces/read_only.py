"""Read queries on a DuckDB database that a stranger's query cannot write to, nor leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .sql_errors import QueryError

if TYPE_CHECKING:
    import duckdb

SETTINGS = (
    "python_enable_replacements=false",
    "enable_external_access=false",
    "errors_as_json=true",
    "enable_progress_bar=false",
)


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
