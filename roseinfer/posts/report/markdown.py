"""Blocks as GitHub Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .content import DIFFERENT, Picture
from .outline import Block, Code, Heading, Pairs, Paragraph, Table, Tally

CODE_SPAN = re.compile(r"(`[^`\n]+`)")
# An underscore inside a word starts no emphasis; an ampersand is one unless it looks like an entity.
SPECIAL = re.compile(r"[\\`*<~$|\[\]]|\b_|_\b|&(?=#?\w+;)")
BLOCK_START = re.compile(r"^(\s*(?=[#>+-])|\s*\d+(?=[.)]))")  # of a heading, a quotation, a list


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(RENDERERS[type(block)](block) for block in blocks) + "\n"


def inline(text: str) -> str:
    """Plain text so that it is shown as it is; code between backticks stays code. Fit for a table's cell too."""
    parts = CODE_SPAN.split(text)
    plain, code = parts[::2], parts[1::2]
    plain = [SPECIAL.sub(lambda found: f"\\{found[0]}", part) for part in plain]
    code = [part.replace("|", r"\|") for part in code] + [""]
    return "".join(a + b for a, b in zip(plain, code, strict=True)).replace("\n", "<br>")


def _heading(block: Heading) -> str:
    return f"{'#' * block.level} {inline(block.text)}"


def _paragraph(block: Paragraph) -> str:
    return BLOCK_START.sub(r"\1\\", inline(block.text))


def _code(block: Code) -> str:
    longest = max(map(len, re.findall("`+", block.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{block.text.rstrip()}\n{fence}"


def _pairs(block: Pairs) -> str:
    return "\n".join(f"- {inline(name)}: {inline(value)}" for name, value in block.rows)


def _tally(block: Tally) -> str:
    return f"**{block.equal} equal, {block.explained} explained, {block.different} different.**"


def _table(block: Table) -> str:
    lines = [f"**{inline(block.title)}**\n"] if block.title else []
    lines.append(_row([inline(column.name) for column in block.columns]))
    lines.append(_row(["---:" if column.kind in ("number", "share") else "---" for column in block.columns]))
    kinds = [column.kind for column in block.columns]
    lines += [_row([_cell(*cell) for cell in zip(kinds, row, strict=True)]) for row in block.rows()]
    return "\n".join(lines if block.values else [*lines, "", "(no rows)"])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(kind: str, text: str) -> str:
    return f"**{text}**" if kind == "verdict" and text == DIFFERENT else inline(text)


def _picture(block: Picture) -> str:
    return f"*Picture, in the HTML page: {inline(block.alt)}*"  # GitHub shows no image that lies inside the text


RENDERERS: dict[type, Callable[..., str]] = {
    Heading: _heading, Paragraph: _paragraph, Code: _code, Pairs: _pairs, Tally: _tally, Table: _table,
    Picture: _picture,
}  # fmt: skip
