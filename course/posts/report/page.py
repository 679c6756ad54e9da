"""Makes one HTML page of a report's Markdown, which needs nothing else: no script, no network."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import mistune

from .content import DIFFERENT, EQUAL, EXPLAINED, Image
from .tables import MARKS
from .template import PICTURE

FLAG = re.compile(r"(?<!\S)--[\w-]+")  # a line is not to end inside one
TALLY = re.compile(rf"<strong>(\d+) {EQUAL}, (\d+) {EXPLAINED}, (\d+) {DIFFERENT}\.</strong>")
TITLE, NO_TITLE = re.compile("<strong>(.*)</strong>"), "Table"  # the bold line before a table is its name
VERDICT = re.compile(rf"(?:<strong>)?({EQUAL}|{EXPLAINED}|{DIFFERENT})(?:</strong>)?")
BREAKS = re.compile(r"(?<=\w[._/(,])(?=[a-z])|(?<=::)(?=\w)")  # where a long name in a cell may go on in the next line
SHARE = re.compile(r"([\d.]+)%")
# The browser itself refuses whatever would be fetched.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = Path(__file__).with_name("page.css")


def to_page(markdown: str, title: str, images: Iterable[Image] = ()) -> str:
    """Make the page. markdown: as to_markdown writes it. images: the report's, in order."""
    renderer = PageRenderer(images)
    body = mistune.create_markdown(renderer=renderer, plugins=["table"])(markdown)
    links = "".join(f'<li><a href="#part-{i}">{part}</a></li>' for i, part in enumerate(renderer.parts, 1))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<nav aria-label="Parts"><ol>{links}</ol></nav>
<main>
{body}</main>
</body>
</html>
"""


class PageRenderer(mistune.HTMLRenderer):
    """Renders headings, images and tables as the page needs them. parts: the headings of level 2, each an anchor."""

    def __init__(self, images: Iterable[Image]) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._images = iter(images)
        self._title = NO_TITLE

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        if level != 2:
            return super().heading(text, level)
        self.parts.append(text)
        return f'<h2 id="part-{len(self.parts)}">{text}</h2>\n'

    def paragraph(self, text: str) -> str:
        if tally := TALLY.fullmatch(text):
            return _tally(*map(int, tally.groups()))
        if text.startswith(tuple(MARKS)):
            return f'<p class="note">{text}</p>\n'
        if title := TITLE.fullmatch(text):
            self._title = re.sub("<.*?>", "", title[1])
        return super().paragraph(text)

    def emphasis(self, text: str) -> str:
        """Put the image in place of the line that stands for it. A report emphasizes nothing else."""
        if not text.startswith(PICTURE):
            return super().emphasis(text)
        image = next(self._images)
        data = base64.b64encode(image.png).decode("ascii")
        return f'<img alt="{escape(image.alt)}" src="data:image/png;base64,{data}">'

    def list(self, text: str, ordered: bool, **attributes: Any) -> str:
        return f"<dl>{text}</dl>\n"

    def list_item(self, text: str) -> str:
        name, _, value = text.partition(": ")
        return f"<dt>{name}</dt><dd>{value}</dd>"

    def inline_html(self, html: str) -> str:
        return html if html == "<br>" else super().inline_html(html)

    def codespan(self, text: str) -> str:
        code = text.replace(r"\|", "|")  # as a table's cell has it
        return f"<code>{_code(code)}</code>"

    def block_code(self, code: str, info: str | None = None) -> str:
        return f'<pre tabindex="0"><code>{_code(code.rstrip())}</code></pre>\n'

    def table(self, text: str) -> str:
        """Wrap the table, so that one wider than the page can be scrolled, with the keyboard too."""
        title, self._title = self._title, NO_TITLE
        return f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table>{text}</table></div>\n'

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        kind = f' class="{"number" if align else "text"}"'
        if head:
            return f'<th scope="col"{kind}>{text}</th>'
        text = BREAKS.sub("<wbr>", text)
        if verdict := VERDICT.fullmatch(text):
            return f'<td{kind}><span class="{verdict[1]}">{verdict[1]}</span></td>'
        share = SHARE.fullmatch(text) if align else None
        return f'<td class="share" style="--share: {share[0]}">{text}</td>' if share else f"<td{kind}>{text}</td>"


def _code(text: str) -> str:
    return FLAG.sub(r'<span class="flag">\g<0></span>', escape(text))


def _tally(*counts: int) -> str:
    pairs = list(zip((EQUAL, EXPLAINED, DIFFERENT), counts, strict=True))
    tiles = "".join(
        f'<li class="{verdict}{"" if count else " none"}"><strong>{count}</strong> {verdict}</li>'
        for verdict, count in pairs
    )
    bar = "".join(f'<span class="{verdict}" style="flex-grow: {count}"></span>' for verdict, count in pairs if count)
    return f'<ul class="tally">{tiles}</ul><div class="bar" aria-hidden="true">{bar}</div>\n'
