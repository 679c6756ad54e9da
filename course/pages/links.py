"""Every link and image in the README, docs, the teacher's kit and the lessons' prose: what `roseinfer links` checks.

A link into this repository needs its file, and the heading that an anchor names. Addresses on the web are checked for
their form only, or asked for their header.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import mistune
import nbformat

from course.pages.headings import headings

PLACES = ("*.md", "docs/**/*.md", "teaching/**/*.md", "data/**/*.md", "notebooks/*.ipynb")
IN_HTML = re.compile(r"""<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*["']([^"']*)""", re.IGNORECASE)
TIMEOUT = 10  # seconds for one address
parse: Any = mistune.create_markdown(renderer="ast", plugins=["table"])


@dataclass(frozen=True)
class Link:
    """A link or image. where: the file it stands in. target: as written."""

    where: Path
    target: str

    @property
    def is_web(self) -> bool:
        return urlsplit(self.target).scheme in ("http", "https")


def pages(root: Path) -> list[Path]:
    return [path for place in PLACES for path in sorted(root.glob(place))]


def links(page: Path) -> list[Link]:
    """Find all links and images of a Markdown file or of a notebook's prose; code has no links."""
    return [Link(page, target) for target in _targets(parse(prose(page)))]


def prose(page: Path) -> str:
    if page.suffix != ".ipynb":
        return page.read_text(encoding="utf-8")
    cells = nbformat.read(page, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def _targets(tokens: Iterable[dict[str, Any]]) -> Iterator[str]:
    for token in tokens:
        if token["type"] in ("link", "image"):
            yield token["attrs"]["url"]
        elif token["type"] in ("block_html", "inline_html"):
            yield from IN_HTML.findall(token["raw"])
        yield from _targets(token.get("children", ()))


def problem(link: Link, root: Path) -> str:
    """Say what is wrong with a link, as far as that shows offline; "" if nothing is."""
    if link.is_web:
        host = urlsplit(link.target).hostname or ""
        return "" if re.fullmatch(r"[\w-]+(\.[\w-]+)+", host) else "an address without a host"
    if urlsplit(link.target).scheme:
        return "" if link.target.startswith("mailto:") else "neither a file of this repository nor http(s)"
    name, _, anchor = unquote(link.target).partition("#")
    found = (link.where.parent / name).resolve() if name else link.where
    if not found.is_relative_to(root):
        return "leads out of the repository"
    if not found.exists():
        return "no such file"
    if anchor and anchor not in anchors(found):
        return f"no such heading; there are: {', '.join(anchors(found)) or 'none'}"
    return ""


def anchors(page: Path) -> list[str]:
    """List the anchors that `#...` may name, shortened as GitHub does, or JupyterLab for a notebook; else []."""
    if page.suffix not in (".md", ".ipynb"):
        return []
    shorten = _jupyter if page.suffix == ".ipynb" else _github
    names = [shorten(text) for _, text in headings(prose(page))]
    before = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}-{n}" if n else name for name, n in zip(names, before, strict=True)]


def _jupyter(heading: str) -> str:
    return heading.replace(" ", "-")


def _github(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def no_answer(address: str) -> str:
    """Say why an address gives no page; "" if it does."""
    request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "roseinfer check-links"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            return ""
    except OSError as error:
        return str(error)


def check(root: Path, online: bool) -> tuple[list[Link], list[tuple[Link, str]]]:
    """Check all links; return them, and the broken ones with the reason. online: ask each address on the web, once."""
    found = [link for page in pages(root) for link in links(page)]
    broken = [(link, why) for link in found if (why := problem(link, root))]
    if online:
        web = {link.target: link for link in found if link.is_web}
        broken += [(link, why) for target, link in web.items() if (why := no_answer(target))]
    return found, broken
