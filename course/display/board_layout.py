"""Places the panels of a Board's frames: rectangles, paths and texts, each with its place in pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from roseinfer.display.figure import PALETTE

from .cells import CHAR, EDGE, LINE, WIDTH, Cell, Frame, Line, Panel

GAP = 26  # pixels between panels
LETTERS = 120  # of a text line, also those of a wide font
FEWEST = 4  # letters of a text that is cut


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    fill: str = "transparent"
    strength: float = 1.0
    stroke: str = "transparent"
    thick: float = 1
    dash: int = 0
    tooltip: str = ""


class Text(NamedTuple):
    x: float
    y: float
    text: str
    size: float = 12
    weight: str = "normal"
    align: str = "left"
    font: str = ""  # monospace


class Path(NamedTuple):
    path: str
    stroke: str
    strength: float = 1.0
    dash: int = 0


Shape = Rect | Text | Path


def bottom(shape: Shape) -> float:
    return 0 if isinstance(shape, Path) else shape.y + (shape.height if isinstance(shape, Rect) else 4)


def frame_shapes(frame: Frame) -> Iterator[Shape]:
    y = 0.0
    for text, weight in ((frame.heading, "bold"), (frame.says, "normal")):
        for line in wrap(text, LETTERS):
            yield Text(0, y + 12, line, 13, weight, font="sans-serif")
            y += LINE
    x, y, tallest = 0.0, y + 6 * (y > 0), 0.0
    for panel in frame.panels:
        width, height = panel.extent
        if x and x + width > WIDTH:
            x, y, tallest = 0, y + tallest + GAP / 2, 0
        yield from _panel(panel, x, y)
        x, tallest = x + width + GAP, max(tallest, height)


def _panel(panel: Panel, left: float, top: float) -> Iterator[Shape]:
    if panel.title:
        yield Text(left, top + 12, panel.title, 13, font="sans-serif")
    x, y = left + panel.left, top + panel.top
    across, down = panel.pitch
    bottom = top + panel.extent[1] - panel.below
    for number, label in enumerate(panel.rows):
        yield Text(x - 8, y + (number + 0.5) * down + 4, str(label), align="right")
    for number, label in enumerate(panel.columns):
        yield Text(x + (number + 0.5) * across, y - 6, str(label), align="center")
    for place, label in panel.edges.items():
        yield Text(x + place * across, bottom + 14, label, 11, align="center")
    if panel.unit:
        yield Text(x, bottom + LINE * bool(panel.edges) + 13, panel.unit, font="sans-serif")
    for cell in panel.cells:
        width, height = cell.width * across, cell.height * down
        seam = 2 if min(width, height) > 11 else 0.5
        box = Rect(x + cell.column * across, y + cell.row * down, width - seam, height - seam)
        yield from _cell(cell, box, panel.align, panel.size)
    for line in panel.lines:
        yield from _line(line, x, y, across, down)


def _cell(cell: Cell, box: Rect, align: str, size: int) -> Iterator[Shape]:
    x, y, width, height = box[:4]
    if cell.hatched:
        yield Path(_hatch(x, y, width, height), EDGE, 0.6)
    if cell.colour != "" and cell.filled:
        yield Rect(x, y, round(width * cell.filled, 1), height, colour_of(cell.colour), cell.strength)
    stroke, thick = (cell.outline, 2) if cell.outline else (EDGE, 1)
    edge = "transparent" if stroke == "none" else stroke
    if edge != "transparent" or cell.tooltip or cell.colour == "" or cell.filled < 1:  # else the colour says it all
        yield box._replace(stroke=edge, thick=thick, dash=4 if cell.dashed else 0, tooltip=cell.tooltip)
    at = x + (width / 2 if align == "center" else 6)
    first = y + (height / 2 + size * 0.36 if not cell.note else height * 0.42)
    if text := fitting(str(cell.text), width - 2 * (align != "center") * 6, size, cell.outline == "none"):
        yield Text(at, first, text, size, align=align)
    if cell.note:
        yield Text(at, first + size + 3, cell.note, size - 2, align=align)


def fitting(text: str, room: float, size: int, may_overhang: bool) -> str:
    """Cut a text that its box has no room for. A number is left out instead."""
    letters = int((room + 4) / (size * CHAR))
    if may_overhang or len(text) <= letters:
        return text
    return "" if letters < FEWEST or text.isdigit() else f"{text[: letters - 1]}…"


def _hatch(x: float, y: float, width: float, height: float) -> str:
    """Draw lines from the lower left to the upper right, 7 pixels apart."""
    parts = []
    for start in range(6, int(width + height), 7):
        right, left = min(start, width), max(0, start - height)
        parts.append(f"M{x + left:.1f} {y + start - left:.1f}L{x + right:.1f} {y + start - right:.1f}")
    return "".join(parts)


def _line(line: Line, x: float, y: float, across: float, down: float) -> Iterator[Path]:
    (y0, x0), (y1, x1) = ((y + row * down, x + column * across) for row, column in (line.start, line.end))
    middle, top = (x0 + x1) / 2, (y0 + y1) / 2 - 2 * line.bend * down
    path = f"M{x0:.1f} {y0:.1f}Q{middle:.1f} {top:.1f} {x1:.1f} {y1:.1f}"
    yield Path(path, colour_of(line.colour), dash=4 if line.dashed else 0)
    if line.arrow:  # two strokes back from the end, along its direction
        length = ((x1 - middle) ** 2 + (y1 - top) ** 2) ** 0.5 or 1
        dx, dy = (x1 - middle) / length, (y1 - top) / length
        ends = [(x1 - 7 * dx + side * 4 * dy, y1 - 7 * dy - side * 4 * dx) for side in (1, -1)]
        head = f"M{ends[0][0]:.1f} {ends[0][1]:.1f}L{x1:.1f} {y1:.1f}L{ends[1][0]:.1f} {ends[1][1]:.1f}"
        yield Path(head, colour_of(line.colour))


def legend_shapes(entries: Sequence[Cell], y: float) -> Iterator[Shape]:
    x = 0.0
    for entry in entries:
        width = len(str(entry.text)) * 11 * CHAR + 14
        yield from _cell(entry, Rect(x, y, width, 18), "center", 11)
        x += width + 8


def colour_of(colour: int | str) -> str:
    """Return the palette's colour for a sequence's number; a colour stays as it is."""
    return PALETTE[colour % len(PALETTE)] if isinstance(colour, int) else colour
