"""The parts of the engine: what each does, which lessons build it, and where it stands in engine_page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from course.display.board import EDGE, Cell, Line

LABEL = 13  # pixels: the line with a group's name


@dataclass(frozen=True)
class Part:
    """Part of the engine: a box in the picture. left and width: in pixels.

    is_below: whether it is in the second line, below a request's way.
    """

    name: str
    does: str
    lessons: tuple[str, ...]
    left: float
    width: float
    is_below: bool = False

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def center(self) -> float:
        return self.left + self.width / 2


TOKENIZER = Part("tokenizer", "turns text into tokens", ("00",), 0, 76)
QUEUE = Part("queue", "holds requests until a policy chooses one", ("17", "22"), 92, 60)
SCHEDULER = Part("scheduler", "chooses the tokens of a step within a budget, and reserves blocks", ("14",), 168, 88)
INPUTS = Part("inputs", "writes block tables, positions and slots", ("05", "06", "10"), 276, 84)
LAUNCH = Part("launch", "starts a step, captured once as a graph", ("13", "18"), 370, 74)
WEIGHTS = Part("weights", "multiply all tokens of the step, in parts on several devices", ("12", "21", "23"), 472, 66)
ATTENTION = Part(
    "attention", "writes K and V to the pool, and reads all that is cached", ("05", "07", "09", "10"), 554, 86
)
CHOICE = Part("choice", "takes one token per sequence, or checks several that were drafted", ("11", "19"), 656, 70)
DETOKENIZER = Part("detokenizer", "turns tokens into text", ("00",), 746, 94)
OVERLAP = Part("overlap", "the host prepares the next step while the device computes", ("16",), 268, 466)
PREFIX_CACHE = Part("prefix cache", "finds blocks with the same beginning of a text", ("15",), 152, 104, is_below=True)
POOL = Part("KV pool", "keeps K and V in blocks", ("01", "02", "03", "04", "08"), 276, 450, is_below=True)
WAY = (TOKENIZER, QUEUE, SCHEDULER, INPUTS, LAUNCH, WEIGHTS, ATTENTION, CHOICE, DETOKENIZER)
SERVER = Part("server", "takes requests over HTTP, and streams the answers", ("20",), 0, 132, is_below=True)
REPLICAS = Part("replicas", "run the same engine again", ("21",), 746, 94, is_below=True)
PARTS = (*WAY, OVERLAP, SERVER, PREFIX_CACHE, POOL, REPLICAS)
HOST = Part("host", "", (), INPUTS.left - 8, LAUNCH.right - INPUTS.left + 16)
DEVICE = Part("device", "", (), WEIGHTS.left - 8, CHOICE.right - WEIGHTS.left + 16)


@dataclass(frozen=True)
class Rows:
    """Top edges and heights of the picture's lines in pixels. The groups host and device enclose a request's way."""

    overlap: float
    overlap_height: float
    way: float
    way_height: float
    group_end: float
    below: float
    below_height: float

    def box(self, part: Part) -> tuple[float, float]:
        """Return the top edge and the height of a part."""
        if part is OVERLAP:
            return self.overlap, self.overlap_height
        return (self.below, self.below_height) if part.is_below else (self.way, self.way_height)

    def middle(self, part: Part) -> float:
        top, height = self.box(part)
        return top + height / 2


def part_cell(part: Part, rows: Rows, **look: Any) -> Cell:
    """Make a box with the part's name, its lessons below, and what it does as tooltip."""
    top, height = rows.box(part)
    lessons = " ".join(part.lessons)
    text = {"text": f"{part.name} · {lessons}"} if part is OVERLAP else {"text": part.name, "note": lessons}
    tooltip = f"{part.name} {part.does}" if part is not OVERLAP else part.does
    return Cell(top, part.left, width=part.width, height=height, tooltip=tooltip, **(text | look))


def outlines(rows: Rows) -> Iterator[Cell]:
    """Draw the outlines and names of the groups host and device."""
    for group in (HOST, DEVICE):
        top = rows.way - LABEL - 3
        yield Cell(top, group.left, width=group.width, height=rows.group_end - top)
        yield Cell(top, group.left + 2, group.name, width=50, height=LABEL + 3, outline="none")


def arrows(rows: Rows) -> list[Line]:
    """Draw the arrows: a request's way, K and V, a lookup in the prefix cache, from the server to the first part."""
    middle, below = rows.way + rows.way_height / 2, rows.below
    ends = [(left.right, right.left) for left, right in zip(WAY, WAY[1:], strict=False)]
    across = [Line((middle, start), (middle, end - 2), EDGE, arrow=True) for start, end in ends]
    pool = ATTENTION.center
    found = rows.below + min(18, rows.below_height / 2)
    return [
        *across,
        Line((rows.group_end, pool - 8), (below - 2, pool - 8), arrow=True),
        Line((below, pool + 8), (rows.group_end + 2, pool + 8), arrow=True),
        Line((found, PREFIX_CACHE.right), (found, POOL.left - 2), arrow=True),
        Line((rows.group_end - 3, SCHEDULER.center), (below - 2, SCHEDULER.center), arrow=True),
        Line((below, TOKENIZER.center), (rows.way + rows.way_height + 2, TOKENIZER.center), arrow=True),
    ]
