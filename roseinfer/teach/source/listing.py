"""Python source as HTML lines in the colours of JupyterLab's editor, and two sources side by side."""

from __future__ import annotations

import html
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
CELL = (
    "width: 50%; padding: 0 8px; text-align: left; vertical-align: top; font-family: monospace; font-size: 12px; "
    "line-height: 1.45; white-space: pre-wrap; overflow-wrap: anywhere"
)
BACKGROUND = {"old": "rgba(213, 94, 0, 0.16)", "new": "rgba(0, 114, 178, 0.18)", "none": "rgba(128, 128, 128, 0.08)"}
SIGN = {"old": "-", "new": "+"}

KINDS = (
    (Comment, "com"), (String, "str"), (Keyword, "kw"), (Operator.Word, "kw"), (Number, "num"),
    (Name.Function, "def"), (Name.Class, "def"), (Name.Decorator, "def"),
)  # fmt: skip


def code_lines(source: str) -> list[str]:
    """Each line of Python source as HTML."""
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
    """One source as a block that scrolls sideways."""
    style = "overflow-x: auto; font-size: 12px; line-height: 1.45"
    return f'{STYLE}<pre style="{style}">{chr(10).join(code_lines(source))}</pre>'


def line_changes(old: str, new: str) -> tuple[int, int]:
    """How many lines of old went and how many of new came."""
    removed = added = 0
    for tag, i1, i2, j1, j2 in _opcodes(old, new):
        if tag != "equal":
            removed, added = removed + i2 - i1, added + j2 - j1
    return removed, added


def side_by_side(old: str, new: str, heads: tuple[str, str]) -> str:
    """Old source to the left, new to the right, lines that did not change level with each other."""
    left, right = code_lines(old), code_lines(new)
    rows = []
    for tag, i1, i2, j1, j2 in _opcodes(old, new):
        for a, b in zip_longest(left[i1:i2], right[j1:j2]):
            cells = (_cell(a), _cell(b)) if tag == "equal" else (_cell(a, "old"), _cell(b, "new"))
            rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col" style="{CELL}">{html.escape(text)}</th>' for text in heads)
    return _table(f"<thead><tr>{head}</tr></thead>", rows)


def one_sided(source: str, side: Literal["old", "new"]) -> str:
    """A source that is all new or all gone."""
    return _table("", [f"<tr>{_cell(line, side)}</tr>" for line in code_lines(source)])


def _table(head: str, rows: list[str]) -> str:
    return f'<table class="rose-code" style="{TABLE}">{head}<tbody>{"".join(rows)}</tbody></table>'


def _cell(line: str | None, side: Literal["old", "new"] | None = None) -> str:
    """One line; without a side it did not change, without a line it faces one that has no counterpart."""
    if line is None:
        return f'<td style="{CELL}; background-color: {BACKGROUND["none"]}"></td>'
    if side is None:
        return f'<td style="{CELL}">  {line}</td>'
    return f'<td style="{CELL}; background-color: {BACKGROUND[side]}">{SIGN[side]} {line}</td>'


def _opcodes(old: str, new: str) -> list[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False).get_opcodes()


def _kind(token: _TokenType) -> str:
    return next((kind for family, kind in KINDS if token in family), "")
