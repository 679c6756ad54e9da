"""What search engines and shared links show of a page: its title, its first paragraph, and a picture of the stages."""

from __future__ import annotations

from html import escape
from textwrap import shorten
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

PICTURE = "_static/requests.png"
LONGEST = 200  # characters; search engines cut what is longer


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Add a page's description and its title to its head, and the picture where the book's address is known."""
    if doctree is None:  # the search page and the index have no text of their own
        return
    text = shorten(next(doctree.findall(nodes.paragraph)).astext(), LONGEST, placeholder=" …")
    title = next(doctree.findall(nodes.title)).astext()
    facts = {"og:type": "website", "og:title": title, "og:description": text}
    if address := app.config.html_baseurl:  # a picture of a shared link needs its whole address
        facts["og:image"] = f"{address}{PICTURE}"
    named = [f'<meta property="{name}" content="{escape(value)}">' for name, value in facts.items()]
    context["metatags"] += "\n".join([f'<meta name="description" content="{escape(text)}">', *named])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
