"""What a Board shows: frames of panels of cells. A picture says what is in a cell; sizes and places are worked out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count

WIDTH = 840  # pixels: JupyterLab's page in a window of 1,280, beside its side bar
MONOSPACE = "DejaVu Sans Mono, monospace"  # it has a sign for a space
CHAR = 0.602  # of a monospace letter's size
LINE = 18  # pixels of a text line
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

    rows: labels left of the rows. columns: labels above the columns. unit: what the columns count; without labels above
    them there are ticks below, at round places. ticks: other labels below the edges between columns, by place. cell:
    width and height in pixels; cells are narrower where the page has no room for all. align: of texts. room: columns
    and rows that have room, at least; a Board gives all frames of a panel the room of the largest.
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
    room: tuple[float, float] = (0, 0)

    @property
    def left(self) -> float:
        return max((len(str(label)) * 12 * CHAR + 8 for label in self.rows), default=0)

    @property
    def top(self) -> float:
        return LINE * (bool(self.title) * 1.3 + bool(self.columns))

    @property
    def spread(self) -> tuple[float, float]:
        """Count the columns and rows that have room."""
        across = max((cell.column + cell.width for cell in self.cells), default=0)
        down = max((cell.row + cell.height for cell in self.cells), default=0)
        return max(across, self.room[0]), max(down, self.room[1])

    @property
    def pitch(self) -> tuple[float, float]:
        """Width and height of a cell in pixels."""
        return min(self.cell[0], (WIDTH - self.left) / max(self.spread[0], 1)), self.cell[1]

    @property
    def edges(self) -> Mapping[int, str]:
        """Labels below the edges between columns."""
        return self.ticks or (edge_ticks(int(self.spread[0])) if self.unit and not self.columns else {})

    @property
    def below(self) -> float:
        return LINE * (bool(self.edges) + bool(self.unit))

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height in pixels."""
        (across, down), (wide, high) = self.spread, self.pitch
        return max(self.left + across * wide, len(self.title) * 6.5), self.top + down * high + self.below


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
    step = next(first * 10**power for power in count() for first in (1, 2, 5) if first * 10**power >= width / 8)
    return {place: str(place) for place in range(0, width + 1, step)}


def flow(cells: Iterable[Cell], title: str = "") -> Panel:
    """Make a panel of cells that follow each other like words, each as wide as its text."""
    placed, row, x = [], 0, 0.0
    for cell in cells:
        width = len(str(cell.text)) * 12 * CHAR + 9
        if x + width > WIDTH:
            row, x = row + 1, 0.0
        placed.append(replace(cell, row=row, column=x, width=width))
        x += width
    return Panel(placed, title, cell=(1, 24), room=(WIDTH, 1))


def with_room(frames: Sequence[Frame]) -> list[Frame]:
    """Give the panels at one place in all frames the room of the largest of them, so that nothing moves."""
    if len({len(frame.panels) for frame in frames}) != 1:
        return list(frames)
    rooms = []
    for panels in zip(*(frame.panels for frame in frames), strict=True):
        across, down = zip(*(panel.spread for panel in panels), strict=True)
        rooms.append((max(across), max(down)))
    return [
        replace(frame, panels=[replace(one, room=room) for one, room in zip(frame.panels, rooms, strict=True)])
        for frame in frames
    ]
