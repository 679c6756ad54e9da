"""Rewrites the links of Markdown texts for the book."""

from __future__ import annotations

import posixpath
import re

LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")


def rewrite_links(text: str, path: str, pages: set[str]) -> str:
    """Keep links to the web, to pages of the book and to pictures; leave the text of all others.

    path: where the text stands in the repository. pages: paths in the repository that are pages.
    """

    def rewrite(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if match["image"] or not target or "://" in target:
            return match[0]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return match[0] if inside in pages else match["text"]

    return LINK.sub(rewrite, text)
