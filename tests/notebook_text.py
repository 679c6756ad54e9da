"""What a recorded notebook shows, as text: for tests that hold its page to the code."""

from __future__ import annotations

import re

from nbformat import NotebookNode


def texts(cell: NotebookNode) -> list[str]:
    """List the plain texts of a code cell, one per output."""
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]


def table(text: str) -> tuple[str, list[dict[str, str]]]:
    """Parse title and rows of a Table's text/plain, whose columns stand above dashes; no rows if it is no table."""
    lines = text.splitlines()
    dashes = next((n for n, line in enumerate(lines) if n and re.fullmatch(r"-+(  +-+)*", line)), None)
    if dashes is None:
        return "", []
    columns = [match.span() for match in re.finditer("-+", lines[dashes])]
    names, *rows = ([line[start:end].strip() for start, end in columns] for line in lines[dashes - 1 :] if line)
    return "\n".join(lines[: dashes - 1]), [dict(zip(names, row, strict=True)) for row in rows[1:]]
