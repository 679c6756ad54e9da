"""moving_picture: a recorded Board as an SVG that plays by itself, for README and docs, where no script runs."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from io import StringIO
from typing import Any
from xml.sax.saxutils import escape

from course.display.board import MONOSPACE
from course.display.board_controls import HEIGHT
from roseinfer.display.figure import INK, PAPER

SVG = "http://www.w3.org/2000/svg"
HOLD_MS = 4000  # how long the last frame stays before the picture starts again
MARGIN = 16  # pixels around the frames
ANCHORS = {"left": "start", "center": "middle", "right": "end"}
# A reader whose system asks for less motion sees the last frame.
STYLE = f"""
.paper {{ fill: {PAPER}; stroke: #80808080 }}
text {{ fill: {INK}; white-space: pre }}
@media (prefers-color-scheme: dark) {{ .paper {{ fill: #0D1117 }} text {{ fill: #E6EDF3 }} }}
g {{ animation-iteration-count: infinite; animation-timing-function: step-end }}
@media (prefers-reduced-motion) {{
  g {{ animation: none !important; visibility: hidden }} .last {{ visibility: visible }}
}}
"""

Row = Mapping[str, str]


def moving_picture(spec: Mapping[str, Any]) -> str:
    """Draw a Board's frames as an SVG that plays them in a loop, on white or dark paper as the reader's system is set.

    spec: the Vega spec of a Board with one choice. Raises ValueError for another spec, and for a single frame.
    """
    signals = {signal["name"]: signal for signal in spec["signals"]}
    if "play" not in signals or "choice" in signals:
        raise ValueError(f"spec must be of a Board with several frames and one choice, got the signals {list(signals)}")
    frame_ms = signals["play"]["on"][-1]["events"]["throttle"]
    last = signals["step"]["bind"]["max"]
    total_ms = (last + 1) * frame_ms + HOLD_MS

    # 1. Shapes of a kind that come and go together share a group. Texts are the last kind: they lie on top.
    groups: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for table in spec["data"]:
        for row in csv.DictReader(StringIO(table["values"])):
            groups[table["name"], int(row["first"]), int(row["last"])].append(DRAWN[table["name"]](row))

    # 2. A group is seen from its first frame until the one after its last; what the last frame has stays till the end.
    keyframes, bodies = [], []
    for number, ((_, first, end), shapes) in enumerate(groups.items()):
        marks = 'class="last" ' if end == last else ""
        if (first, end) != (0, last):
            begins, ends = (100 * frame * frame_ms / total_ms for frame in (first, end + 1))
            gone = "" if end == last else f"{ends:.3f}% {{ visibility: hidden }}"
            shown = f"{begins:.3f}% {{ visibility: visible }}"
            hidden = "0% { visibility: hidden } " if first else ""
            keyframes.append(f"@keyframes k{number} {{ {hidden}{shown} {gone} }}")
            marks += f'style="animation-name: k{number}; animation-duration: {total_ms}ms"'
        bodies.append(f"<g {marks}>{''.join(shapes)}</g>")

    # 3. The picture brings its own paper, because the page below may be light or dark. It has no room for controls.
    width, height = spec["width"] + 2 * MARGIN, spec["height"] - HEIGHT + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="{SVG}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
            f"<title>{escape(spec['description'])}</title>",
            f"<style>{STYLE}{chr(10).join(keyframes)}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            f'<svg x="{MARGIN}" y="{MARGIN}" overflow="visible">',
            *bodies,
            "</svg></svg>\n",
        ]
    )


def _rect(row: Row) -> str:
    place = " ".join(f'{name}="{row[name]}"' for name in ("x", "y", "width", "height"))
    return (
        f'<rect {place} rx="2" fill="{row["fill"]}" fill-opacity="{row["strength"]}" stroke="{row["stroke"]}" '
        f'stroke-width="{row["thick"]}"{_dash(row)}/>'
    )


def _path(row: Row) -> str:
    colour = f'stroke="{row["stroke"]}" stroke-opacity="{row["strength"]}" stroke-width="1.2"'
    return f'<path d="{row["path"]}" fill="none" {colour}{_dash(row)}/>'


def _text(row: Row) -> str:
    font = f'font-family="{row["font"] or MONOSPACE}" font-size="{row["size"]}" font-weight="{row["weight"]}"'
    anchor = f'text-anchor="{ANCHORS[row["align"]]}"'
    return f'<text x="{row["x"]}" y="{row["y"]}" {font} {anchor}>{escape(row["text"])}</text>'


def _dash(row: Row) -> str:
    return "" if row["dash"] == "0" else f' stroke-dasharray="{row["dash"]} 3"'


DRAWN = {"rects": _rect, "paths": _path, "texts": _text}
