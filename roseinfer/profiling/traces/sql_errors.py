"""DuckDB's message for a bad query, with a caret under the place in the query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


QUOTES = " (text stands in single quotes; double quotes name a column)"
BLANK_LINES = "\r\n"  # but not spaces, which would move a first line away from its caret


class QueryError(ValueError):
    """DuckDB's message and the query; under the place that it names, if it names one, a caret.

    error: of a connection with errors_as_json, whose errors carry the place as an offset in bytes.
    says: the message alone. line: the line of the query that holds the place, "" if there is none.
    """

    def __init__(self, error: duckdb.Error, query: str) -> None:
        kind, _, text = str(error).partition(": ")
        details = json.loads(text) if text.startswith("{") else {"exception_message": text}
        self.says = f"{kind}: {details['exception_message'].strip()}"
        self.line, shown = "", query
        if "position" in details:
            before, after = halves(query, int(details["position"]))
            self.line = (before.rpartition("\n")[2] + after.partition("\n")[0]).strip()
            if after.startswith('"') and "not found" in self.says:
                self.says += QUOTES
            shown = pointed_at(query, int(details["position"]))
        super().__init__(f"{self.says}\n\nThe query was:\n{shown.strip(BLANK_LINES)}")


def halves(query: str, position: int) -> tuple[str, str]:
    """Split the query at its byte `position`."""
    before = query.encode()[:position].decode(errors="ignore")
    return before, query[len(before) :]


def pointed_at(query: str, position: int) -> str:
    """Return the query with a caret on a further line, below its byte `position`."""
    before, after = halves(query, position)
    line = before.rpartition("\n")[2]
    indent = "".join("\t" if character == "\t" else " " for character in line)
    rest, newline, below = after.partition("\n")
    return f"{before}{rest}\n{indent}^{newline}{below}"
