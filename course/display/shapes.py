"""Shapes: panels of cells laid out as rectangles, paths and texts, each with its place in pixels.

A view consists of Cell, Line, Panel and Frame; display.grid shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from textwrap import wrap
from typing import NamedTuple

from roseinfer.display.figure import PALETTE

WIDTH = 840  # pixels: JupyterLab's page in a window of 1,280, beside its side bar
GAP = 26  # between panels
MONOSPACE = "DejaVu Sans Mono, monospace"  # it has a sign for a space
CHAR = 0.602  # of a monospace letter's size
LINE, LETTERS = 18, 120  # pixels of a text line, and how many letters fit it, also those of a wide font
EDGE = "#808080"


@dataclass(frozen=True)
class Cell:
    """A box at (row, column) of its panel, in cells; it may be several cells wide or high.

    colour: a sequence's number, a colour, or "" for none. strength: its opacity. filled: the share of the box that is
    coloured, from the left. hatched: padding. note: a smaller line below the text. outline: a colour; "" for a thin
    grey line, "none" for none. tooltip: shown under the pointer.
    """

    row: float
    column: float
    text: object = ""
    colour: int | str = ""
    note: str = ""
    outline: str = ""
    dashed: bool = False
    hatched: bool = False
    filled: float = 1.0
    strength: float = 0.5
    width: float = 1.0
    height: float = 1.0
    tooltip: str = ""


@dataclass(frozen=True)
class Line:
    """A line from (row, column) to another, bent upwards by `bend` cells in its middle."""

    start: tuple[float, float]
    end: tuple[float, float]
    colour: int | str = EDGE
    dashed: bool = False
    bend: float = 0.0
    arrow: bool = False


@dataclass(frozen=True)
class Panel:
    """Cells and lines with labels.

    rows: labels left of the rows. columns: labels above the columns. ticks: labels below the edges between columns, by
    place. unit: what the ticks, or the columns, count. cell: width and height in pixels. align: of texts.
    """

    cells: Sequence[Cell]
    title: str = ""
    rows: Sequence[object] = ()
    columns: Sequence[object] = ()
    ticks: Mapping[int, str] = field(default_factory=dict)
    unit: str = ""
    cell: tuple[float, float] = (28, 24)
    align: str = "center"
    size: int = 12
    lines: Sequence[Line] = ()

    @property
    def left(self) -> float:
        return max((len(str(label)) * 12 * CHAR + 8 for label in self.rows), default=0)

    @property
    def top(self) -> float:
        return LINE * (bool(self.title) * 1.3 + bool(self.columns))

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height in pixels."""
        across = max((cell.column + cell.width for cell in self.cells), default=0) * self.cell[0]
        down = max((cell.row + cell.height for cell in self.cells), default=0) * self.cell[1]
        below = LINE * (bool(self.ticks) + bool(self.unit))
        return max(self.left + across, len(self.title) * 6.5), self.top + down + below


@dataclass(frozen=True)
class Frame:
    """Panels from left to right, in as many lines as they need. heading: bold, above `says`, which is wrapped."""

    panels: Sequence[Panel]
    heading: str = ""
    says: str = ""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], marked: int | None = None) -> Panel:
    """Make a panel of texts in columns as wide as they need. marked: a row that has a colour."""
    lines = [columns, *([str(text) for text in row] for row in rows)]
    widths = [max(map(len, texts)) + 2 for texts in zip(*lines, strict=True)]
    starts = list(accumulate(widths, initial=0))
    cells = [
        Cell(i, starts[j], text, 1 if i - 1 == marked else "", outline="" if i else "none", width=widths[j])
        for i, line in enumerate(lines)
        for j, text in enumerate(line)
    ]
    return Panel(cells, title, cell=(11 * CHAR, 21), size=11)


def edge_ticks(width: int) -> dict[int, str]:
    """Choose ticks at round places, about eight of them."""
    step = next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 250, 1000) if step >= width / 8)
    return {place: str(place) for place in range(0, width + 1, step)}


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
    across, down = panel.cell
    bottom = top + panel.extent[1] - LINE * (bool(panel.ticks) + bool(panel.unit))
    for number, label in enumerate(panel.rows):
        yield Text(x - 8, y + (number + 0.5) * down + 4, str(label), align="right")
    for number, label in enumerate(panel.columns):
        yield Text(x + (number + 0.5) * across, y - 6, str(label), align="center")
    for place, label in panel.ticks.items():
        yield Text(x + place * across, bottom + 14, label, 11, align="center")
    if panel.unit:
        yield Text(x, bottom + LINE * bool(panel.ticks) + 13, panel.unit, font="sans-serif")
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
    if str(cell.text):
        yield Text(at, first, str(cell.text), size, align=align)
    if cell.note:
        yield Text(at, first + size + 3, cell.note, size - 2, align=align)


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
