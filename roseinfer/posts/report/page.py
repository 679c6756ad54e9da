"""Blocks as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from html import escape

from .content import DIFFERENT, EQUAL, EXPLAINED, Picture
from .outline import Block, Code, Heading, Pairs, Paragraph, Table, Tally
from .page_style import CSS

CODE_SPAN = re.compile(r"`([^`\n]+)`")
FLAG = re.compile(r"(?<!\S)--[\w-]+")  # a line is not to end inside one
# The browser itself refuses whatever would be fetched.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def to_page(blocks: Sequence[Block], title: str) -> str:
    parts = [block for block in blocks if isinstance(block, Heading) and block.level == 2]
    ids = {id(heading): f"part-{i}" for i, heading in enumerate(parts, 1)}
    links = "".join(f'<li><a href="#{ids[id(part)]}">{inline(part.text)}</a></li>' for part in parts)
    body = "\n".join(
        _part_heading(block, ids[id(block)]) if id(block) in ids else RENDERERS[type(block)](block) for block in blocks
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<nav aria-label="Parts"><ol>{links}</ol></nav>
<main>
{body}
</main>
</body>
</html>
"""


def inline(text: str) -> str:
    """Escaped; what stands between backticks as code."""
    return CODE_SPAN.sub(lambda found: _code_span(found[1]), escape(text)).replace("\n", "<br>")


def _code_span(escaped: str) -> str:
    flags_whole = FLAG.sub(r'<span class="flag">\g<0></span>', escaped)
    return f"<code>{flags_whole}</code>"


def _heading(block: Heading) -> str:
    return f"<h{block.level}>{inline(block.text)}</h{block.level}>"


def _part_heading(block: Heading, anchor: str) -> str:
    return f'<h2 id="{anchor}">{inline(block.text)}</h2>'


def _paragraph(block: Paragraph) -> str:
    return f"<p>{inline(block.text)}</p>"


def _code(block: Code) -> str:
    return f'<pre tabindex="0">{_code_span(escape(block.text.rstrip()))}</pre>'


def _pairs(block: Pairs) -> str:
    rows = "".join(f"<dt>{inline(name)}</dt><dd>{inline(value)}</dd>" for name, value in block.rows)
    return f"<dl>{rows}</dl>"


def _tally(block: Tally) -> str:
    counts = ((EQUAL, block.equal), (EXPLAINED, block.explained), (DIFFERENT, block.different))
    tiles = "".join(
        f'<li class="{verdict}{"" if count else " none"}"><strong>{count}</strong> {verdict}</li>'
        for verdict, count in counts
    )
    shares = "".join(
        f'<span class="{verdict}" style="flex-grow: {count}"></span>' for verdict, count in counts if count
    )
    return f'<ul class="tally">{tiles}</ul><div class="bar" aria-hidden="true">{shares}</div>'


def _table(block: Table) -> str:
    caption = f"<figcaption>{inline(block.title)}</figcaption>" if block.title else ""
    head = "".join(f'<th scope="col" class="{column.kind}">{inline(column.name)}</th>' for column in block.columns)
    body = "".join(f"<tr>{_cells(block, row)}</tr>" for row in zip(block.values, block.rows(), strict=True))
    body = body or f'<tr><td colspan="{len(block.columns)}">(no rows)</td></tr>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    # What is wider than the page is scrolled, with the keyboard too.
    label = escape(re.sub("`", "", block.title)) or "Table"
    return (
        f'<figure>{caption}<div class="scroll" role="region" tabindex="0" aria-label="{label}">{table}</div></figure>'
    )


def _cells(block: Table, row: tuple[Sequence[object], Sequence[str]]) -> str:
    cells = zip(block.columns, *row, strict=True)
    return "".join(_cell(column.kind, value, text) for column, value, text in cells)


def _cell(kind: str, value: object, text: str) -> str:
    if kind == "verdict":
        return f'<td class="verdict"><span class="{escape(text)}">{escape(text)}</span></td>'
    style = f' style="--share: {min(max(value, 0), 1):.1%}"' if kind == "share" and value is not None else ""
    return f'<td class="{kind}"{style}>{inline(text)}</td>'


def _picture(block: Picture) -> str:
    data = base64.b64encode(block.png).decode("ascii")
    return f'<figure><img alt="{escape(block.alt)}" src="data:image/png;base64,{data}"></figure>'


RENDERERS: dict[type, Callable[..., str]] = {
    Heading: _heading, Paragraph: _paragraph, Code: _code, Pairs: _pairs, Tally: _tally, Table: _table,
    Picture: _picture,
}  # fmt: skip
