"""Python source as HTML lines in the colours of JupyterLab's editor, and two sources side by side."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal

from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

# Lab's variables follow its theme. The fallbacks (other front ends) are middle tones that read on white and black.
STYLE = """<style>
.jp-RenderedHTMLCommon table.rose-code tr, .jp-RenderedHTMLCommon table.rose-code tr:hover { background: none; }
.rose-kw { color: var(--jp-mirror-editor-keyword-color, #3d8f3d); font-weight: bold; }
.rose-str { color: var(--jp-mirror-editor-string-color, #c7524f); }
.rose-com { color: var(--jp-mirror-editor-comment-color, #5f8f8f); font-style: italic; }
.rose-num { color: var(--jp-mirror-editor-number-color, #3d8f5f); }
.rose-def { color: var(--jp-mirror-editor-def-color, #4a80d8); }
</style>"""
# What a reader cannot do without stays inline: Lab drops <style> from a notebook that has just been opened, until it
# is run. Half-transparent backgrounds (Okabe and Ito's vermilion and blue) leave the theme's text readable.
TABLE = "width: 100%; table-layout: fixed; border-collapse: collapse; margin: 0"
CODE = "font-family: monospace; font-size: 12px; line-height: 1.45; white-space: pre-wrap"
CELL = f"width: 50%; padding: 0 8px; text-align: left; vertical-align: top; {CODE}"
BACKGROUND = {"old": "rgba(213, 94, 0, 0.16)", "new": "rgba(0, 114, 178, 0.18)", "none": "rgba(128, 128, 128, 0.08)"}
SIGN = {"old": "- ", "new": "+ ", "none": "  "}
CHARACTER = 7.25  # pixels, of a monospaced font of 12: before a notebook is run, Lab drops styles in ch and calc()
COLUMN = 55  # characters in one of two columns on Lab's default page
HANG = 4  # a line that is wrapped goes on this much further in than it began
WORD = re.compile(r"(?:<[^>]*>|[^\s<])+")  # in a line of HTML
BREAKABLE = re.compile(r"-\S|[)\]}][\[({]")  # where browsers wrap though there is no space

OPEN_LINES = 40  # about a screen; longer code is folded

KINDS = (
    (Comment, "com"),
    (String, "str"),
    (Keyword, "kw"),
    (Operator.Word, "kw"),
    (Number, "num"),
    (Name.Function, "def"),
    (Name.Class, "def"),
    (Name.Decorator, "def"),
)


def fold(summary: str, content: str, lines: int) -> str:
    """Put code below its summary, open when it has at most OPEN_LINES lines."""
    return f"<details{' open' * (lines <= OPEN_LINES)}><summary>{summary}</summary>{content}</details>"


def code_lines(source: str) -> list[str]:
    """Convert each line of Python source to HTML."""
    lines = [""]
    for token, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(source):
        kind = _kind(token)
        for i, part in enumerate(text.split("\n")):
            if i:
                lines.append("")
            if part:
                part = html.escape(part)
                lines[-1] += f'<span class="rose-{kind}">{part}</span>' if kind else part
    return lines


def listing(source: str) -> str:
    """Show one source, its long lines wrapped between words. It scrolls if the page is too narrow for a word."""
    lines = "".join(wrapped_lines(source))
    style = f"{CODE}; min-width: {_narrowest(source.split(chr(10)))}px"
    return f'{STYLE}<div style="overflow-x: auto"><div style="{style}">{lines}</div></div>'


def line_changes(old: str, new: str) -> tuple[int, int]:
    """Count the lines of old that went and the lines of new that came."""
    removed = added = 0
    for tag, i1, i2, j1, j2 in _opcodes(old, new):
        if tag != "equal":
            removed, added = removed + i2 - i1, added + j2 - j1
    return removed, added


def side_by_side(old: str, new: str, heads: tuple[str, str]) -> str:
    """Show the old source to the left and the new one to the right, with unchanged lines level with each other."""
    same = wrapped_lines(old, SIGN["none"])
    left, right = wrapped_lines(old, SIGN["old"]), wrapped_lines(new, SIGN["new"])
    rows = []
    for tag, i1, i2, j1, j2 in _opcodes(old, new):
        if tag == "equal":
            rows += [2 * (f'<td style="{CELL}">{line}</td>',) for line in same[i1:i2]]
        else:
            rows += [(_cell(a, "old"), _cell(b, "new")) for a, b in zip_longest(left[i1:i2], right[j1:j2])]
    return two_columns(heads, [f"<tr>{''.join(cells)}</tr>" for cells in rows], [*old.split("\n"), *new.split("\n")])


def one_sided(source: str, side: Literal["old", "new"]) -> str:
    """Show a source that is all new or all gone."""
    rows = "".join(f"<tr>{_cell(line, side)}</tr>" for line in wrapped_lines(source, SIGN[side]))
    return _scrolling("", rows, _narrowest(source.split("\n")))


def two_columns(heads: tuple[str, str], rows: list[str], lines: list[str]) -> str:
    """Make a table of code under two heads. It scrolls if a column is too narrow for the longest word of `lines`."""
    head = "".join(f'<th scope="col" style="{CELL}">{html.escape(text)}</th>' for text in heads)
    return _scrolling(f"<thead><tr>{head}</tr></thead>", "".join(rows), 2 * _narrowest(lines))


def wrapped_lines(source: str, sign: str = "") -> list[str]:
    """Make each line a block of HTML after a sign; it wraps between words and goes on where its code began."""
    lines = []
    for text, line in zip(source.split("\n"), code_lines(source), strict=True):
        hang = CHARACTER * _hang(text)
        style = f"padding-left: {hang:g}px; text-indent: {-hang:g}px"
        shown = sign + WORD.sub(_unbroken, line) or "<br/>"  # an empty line would have no height
        lines.append(f'<div style="{style}">{shown}</div>')
    return lines


def _scrolling(head: str, rows: str, width: int) -> str:
    table = f'<table class="rose-code" style="{TABLE}; min-width: {width}px">{head}<tbody>{rows}</tbody></table>'
    return f'<div style="overflow-x: auto">{table}</div>'


def _cell(line: str | None, side: Literal["old", "new"]) -> str:
    """Make the cell of a line. None stands beside a line that has no counterpart."""
    return f'<td style="{CELL}; background-color: {BACKGROUND[side if line else "none"]}">{line or ""}</td>'


def _hang(line: str) -> int:
    """Return how far in a wrapped line goes on, in characters: less if its longest word needs the room."""
    indent = len(SIGN["none"]) + len(line) - len(line.lstrip())
    return max(0, min(indent + HANG, COLUMN - _longest_word(line)))


def _narrowest(lines: list[str]) -> int:
    """Return the least width of a column, in pixels, at which no word stands out of it."""
    return 16 + round(CHARACTER * max(_hang(line) + _longest_word(line) for line in lines))


def _longest_word(line: str) -> int:
    return max((len(part) for word in line.split() for part in _parts(word)), default=0)


def _parts(word: str) -> list[str]:
    """Split a word that is longer than a column after its dots, where it may break."""
    return re.split(r"(?<=\.)", word) if len(word) > COLUMN else [word]


def _unbroken(word: re.Match[str]) -> str:
    """Keep a word on one line where a browser would break it. Part of a comment or a string is left as it is."""
    text = html.unescape(re.sub("<[^>]*>", "", word[0]))
    if len(text) > COLUMN:
        return re.sub(r"\.(?![^<]*>)", ".<wbr>", word[0])
    whole = word[0].count("<span") == word[0].count("</span>")
    return f'<span style="white-space: nowrap">{word[0]}</span>' if whole and BREAKABLE.search(text) else word[0]


def _opcodes(old: str, new: str) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False).get_opcodes()


def _kind(token: _TokenType) -> str:
    return next((kind for family, kind in KINDS if token in family), "")
