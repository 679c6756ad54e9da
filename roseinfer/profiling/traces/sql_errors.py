"""DuckDB's message for a bad query, with a caret under the place in the query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


BLANK_LINES = "\r\n"  # but not spaces, which would move a first line away from its caret


def explain(error: duckdb.Error, query: str) -> str:
    """DuckDB's message and the query; under the place that it names, if it names one, a caret.

    error: of a connection with errors_as_json, whose errors carry the place as an offset in bytes.
    """
    kind, _, text = str(error).partition(": ")
    details = json.loads(text) if text.startswith("{") else {"exception_message": text}
    shown = pointed_at(query, int(details["position"])) if "position" in details else query
    return f"{kind}: {details['exception_message'].strip()}\n\nThe query was:\n{shown.strip(BLANK_LINES)}"


def pointed_at(query: str, position: int) -> str:
    """The query with a line ending in a caret below its byte `position`."""
    before = query.encode()[:position].decode(errors="ignore")
    line_start = before.rfind("\n") + 1
    indent = "".join("\t" if character == "\t" else " " for character in before[line_start:])
    line_end = query.find("\n", line_start)
    line_end = len(query) if line_end < 0 else line_end
    return f"{query[:line_end]}\n{indent}^{query[line_end:]}"
