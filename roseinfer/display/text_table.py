"""Rows as aligned text, with nothing left out: for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from numbers import Number
from typing import Any

GAP = "  "
NARROWEST = 20  # characters, of a column that is folded


def text_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, decimals: int | None = None, width: int | None = None
) -> str:
    """A line of names, a rule, and the rows, or "(no rows)".

    decimals: of floats; all their digits if None. width: of a terminal; where the table is wider, its widest column
    of text is folded, each cell onto as many lines as it needs.
    """
    rows = list(rows)
    cells = [[cell_text(value, decimals) for value in row] for row in rows]
    right = [all(isinstance(value, Number) or value is None for value in values) for values in zip(*rows, strict=True)]
    right = right or [False] * len(columns)
    widths = [
        max(len(line) for text in texts for line in text.split("\n")) for texts in zip(columns, *cells, strict=True)
    ]
    if width is not None:
        widths = fitted(widths, right, width)

    def lines(texts: Sequence[str]) -> list[str]:
        folded = [fold(text, size) for text, size in zip(texts, widths, strict=True)]
        return [aligned(line, widths, right) for line in zip_longest(*folded, fillvalue="")]

    table = [*lines(columns), GAP.join("-" * size for size in widths)]
    table += [line for row in cells for line in lines(row)] or ["(no rows)"]
    return "\n".join(table)


def cell_text(value: Any, decimals: int | None = None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float) and decimals is not None:
        return f"{value:,.{decimals}f}"
    return str(value)


def fitted(widths: list[int], right: Sequence[bool], width: int) -> list[int]:
    """The widths with that of the widest column of text cut by what is too much for `width`."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    folding = max((i for i, is_number in enumerate(right) if not is_number), key=lambda i: widths[i], default=None)
    if excess <= 0 or folding is None:
        return widths
    size = max(widths[folding] - excess, min(NARROWEST, widths[folding]))
    return [size if i == folding else other for i, other in enumerate(widths)]


def fold(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` characters, none of them lost."""
    return [line[i : i + width] for line in text.split("\n") for i in range(0, max(len(line), 1), max(width, 1))]


def aligned(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True))
    return GAP.join(padded).rstrip()
