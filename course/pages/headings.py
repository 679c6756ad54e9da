"""Headings of Markdown text, and the parts into which they divide it."""

from __future__ import annotations

import re

HEADING = re.compile(r"(?P<level>#{1,6})\s+(?P<text>.*?)\s*#*")
FENCE = re.compile(r"\s{0,3}(```+|~~~+)")


def heading_of(text: str) -> tuple[int, str] | None:
    """Return (level, text) of the heading with which the text begins; None if it begins with something else."""
    first_line = text.lstrip("\n").partition("\n")[0]
    match = HEADING.fullmatch(first_line)
    return (len(match["level"]), match["text"]) if match else None


def split_at_headings(text: str) -> list[str]:
    """Split a text into parts, each but perhaps the first with a heading on top. A `#` in a fence is no heading."""
    parts: list[list[str]] = [[]]
    fence = ""
    for line in text.splitlines():
        opens = FENCE.match(line)
        if fence:
            fence = "" if opens and opens[1].startswith(fence) else fence
        elif opens:
            fence = opens[1]
        elif HEADING.fullmatch(line):
            parts.append([])
        parts[-1].append(line)
    texts = ("\n".join(lines).strip() for lines in parts)
    return [part for part in texts if part]


def headings(text: str) -> list[tuple[int, str]]:
    """List (level, text) of every heading, in order."""
    return [found for part in split_at_headings(text) if (found := heading_of(part))]
