"""TextTable: the texts of a table for a terminal, a Markdown file or a page. All tables of the library use it.

Plain text, not a library's boxes: what a terminal shows, a pipe and a recorded notebook get letter by letter.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from numbers import Number
from typing import Any
from unicodedata import combining, east_asian_width

GAP = "  "
NARROWEST = 20  # columns of the terminal, of a column that is folded
NO_ROWS = "(no rows)"
LEFT, RIGHT = "text-align: left", "text-align: right; font-variant-numeric: tabular-nums"
# A page of 1,100 pixels has room for so many columns of HTML. More stand close, and a name may break after a "_".
MANY = 8
CLOSE = "; padding: 0.5em 0.2em"

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab and the line's end
CODE_SPAN = re.compile(r"(`[^`\n]+`)")
# Underscores inside a word start no emphasis; an ampersand is one unless it looks like an entity.
SPECIAL = re.compile(r"[\\`*<~$|\[\]]|\b_+|_+\b|&(?=#?\w+;)")


@dataclass(frozen=True)
class Column:
    """A column.

    show: turns a value (not None) into text. right: align right; None: if its values are numbers. of: where a row is a
    dict, the key of its value, or a function of the row.
    """

    name: str
    show: Callable[[Any], str] = str
    right: bool | None = None
    of: str | Callable[[Any], Any] = ""

    def value(self, row: Mapping[str, Any]) -> Any:
        return row[self.of] if isinstance(self.of, str) else self.of(row)


@dataclass(frozen=True)
class TextTable:
    """A table of texts. names: of the columns. rows: their texts, in that order. right: which are aligned right.

    keys: how many of the first columns say what a row is.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    keys: int = 1

    @classmethod
    def of(
        cls, columns: Sequence[Column | str], rows: Iterable[Sequence[Any]], missing: str = "", keys: int = 1
    ) -> TextTable:
        """Make a table of values. missing: stands for None. Raises ValueError for a row that lacks a column's value."""
        shown = [Column(column) if isinstance(column, str) else column for column in columns]
        pairs = [list(zip(shown, row, strict=True)) for row in rows]
        texts = [[missing if value is None else column.show(value) for column, value in row] for row in pairs]
        values = [[row[i][1] for row in pairs] for i in range(len(shown))]
        right = [are_numbers(v) if c.right is None else c.right for c, v in zip(shown, values, strict=True)]
        return cls([column.name for column in shown], texts, right, keys)

    @classmethod
    def of_rows(
        cls, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], missing: str = "", keys: int = 1
    ) -> TextTable:
        """Make a table of dicts, of which each column takes a value."""
        return cls.of(columns, [[column.value(row) for column in columns] for row in rows], missing, keys)

    def text(self, width: int | None = None) -> str:
        """Return a line of names, a rule, and the rows, or "(no rows)".

        width: of a terminal; where the table is wider, its widest column of text is folded, each cell onto as many
        lines as it needs. Where that is not enough, the columns that do not fit come below, beside the keys again.
        """
        shown = self._printable()
        if width is None:
            return shown._text(shown._widths())
        parts = shown._parts(width)
        return "\n\n".join(part._text(fitted(part._widths(), part.right, width)) for part in parts)

    def _printable(self) -> TextTable:
        names, *rows = ([*map(printable, texts)] for texts in (self.names, *self.rows))
        return TextTable(names, rows, self.right, self.keys)

    def _widths(self) -> list[int]:
        return [
            max(text_width(line) for text in texts for line in text.split("\n"))
            for texts in zip(self.names, *self.rows, strict=True)
        ]

    def _parts(self, width: int) -> list[TextTable]:
        """Split the table by columns: each part has the keys, and no more of the other columns than fit."""
        widths = self._widths()
        if line_width(fitted(widths, self.right, width)) <= width:
            return [self]
        keys = list(range(self.keys))
        parts: list[list[int]] = [[]]
        for place in range(self.keys, len(widths)):
            if parts[-1] and line_width([widths[i] for i in (*keys, *parts[-1], place)]) > width:
                parts.append([])
            parts[-1].append(place)
        return [self._columns([*keys, *part]) for part in parts]

    def _columns(self, places: list[int]) -> TextTable:
        names, right = [self.names[i] for i in places], [self.right[i] for i in places]
        return TextTable(names, [[row[i] for i in places] for row in self.rows], right, self.keys)

    def _text(self, widths: list[int]) -> str:
        lines = [*self._lines(self.names, widths, below=False), GAP.join("-" * size for size in widths)]
        lines += [line for row in self.rows for line in self._lines(row, widths)] or [NO_ROWS]
        return "\n".join(lines)

    def _lines(self, texts: Sequence[str], widths: Sequence[int], below: bool = True) -> list[str]:
        """Return the lines of one row. below: cells of fewer lines than others have their empty ones below."""
        folded = [fold(text, size) for text, size in zip(texts, widths, strict=True)]
        height = max(map(len, folded))
        whole = [f + [""] * (height - len(f)) if below else [""] * (height - len(f)) + f for f in folded]
        return [GAP.join(map(aligned, line, widths, self.right)).rstrip() for line in zip(*whole, strict=True)]

    def markdown(self, bold: str = "") -> str:
        """Return GitHub's table, or its head and "(no rows)". bold: the text of cells that must stand out."""
        rule = ["---:" if right else "---" for right in self.right]
        rows = [[f"**{text}**" if text and text == bold else markdown_text(text) for text in row] for row in self.rows]
        table = "\n".join(f"| {' | '.join(row)} |" for row in [[*map(markdown_text, self.names)], rule, *rows])
        return table if rows else f"{table}\n\n{NO_ROWS}"

    def html(self, label: str = "", more: Callable[[int, int], str] = lambda row, column: "") -> str:
        """Return an HTML table. label: for people who do not see it. more: CSS of the cell of that row and column."""
        is_wide = len(self.names) > MANY
        align = [(RIGHT if right else LEFT) + CLOSE * is_wide for right in self.right]
        columns = list(enumerate(align))
        head = "".join(f'<th scope="col" style="{align[j]}">{escape(name)}</th>' for j, name in enumerate(self.names))
        body = "".join(
            "<tr>" + "".join(f'<td style="{css}{more(i, j)}">{escape(row[j])}</td>' for j, css in columns) + "</tr>"
            for i, row in enumerate(self.rows)
        )
        body = body.replace("_", "_<wbr>") if is_wide else body  # no style has a "_"
        # not a <caption>, which would be wrapped to the width of a narrow table
        return f'<table aria-label="{escape(label)}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def are_numbers(values: Sequence[Any]) -> bool:
    """Tell whether all values that are there are numbers, and there is at least one."""
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, Number) and not isinstance(value, bool) for value in known)


def markdown_text(text: str) -> str:
    """Escape plain text for Markdown, table cells included; code between backticks stays code."""
    parts = CODE_SPAN.split(text)
    parts[::2] = [SPECIAL.sub(lambda found: re.sub("(.)", r"\\\1", found[0]), part) for part in parts[::2]]
    parts[1::2] = [part.replace("|", r"\|") for part in parts[1::2]]
    return "".join(parts).replace("\n", "<br>")


def line_width(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def fitted(widths: list[int], right: Sequence[bool], width: int) -> list[int]:
    """Cut the widths to fit `width`: the widest column of text loses what is too much."""
    excess = line_width(widths) - width
    folding = max((i for i, is_number in enumerate(right) if not is_number), key=lambda i: widths[i], default=None)
    if excess <= 0 or folding is None:
        return widths
    size = max(widths[folding] - excess, min(NARROWEST, widths[folding]))
    return [size if i == folding else other for i, other in enumerate(widths)]


def printable(text: str) -> str:
    """Spell out a text's control characters: a trace's names must not steer a terminal."""
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def text_width(text: str) -> int:
    """Count a text's columns on a terminal: a Chinese, Japanese or Korean character takes two, an accent none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def fold(text: str, width: int) -> list[str]:
    """Fold the text into lines of at most `width` columns, after a space where there is one. No character is lost."""
    lines = []
    for line in text.split("\n"):
        while text_width(line) > max(width, 1):
            widths = accumulate(map(text_width, line))
            end = max(sum(size <= width for size in widths), 1)
            end = line.rfind(" ", 0, end) + 1 or end
            lines.append(line[:end])
            line = line[end:]
        lines.append(line)
    return lines


def aligned(text: str, width: int, right: bool) -> str:
    space = " " * (width - text_width(text))
    return space + text if right else text + space


def terminal_width() -> int | None:
    """Count the characters on a line of the terminal that stdout is; None where it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
