"""engine_page: the engine on one page. One request travels through it, or the part that a lesson builds is lit."""

from __future__ import annotations

from typing import Any

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.figure import PALETTE

from .engine_parts import ATTENTION, OVERLAP, PARTS, Part, Rows, arrows, outlines, part_cell
from .engine_walk import walk_request

LIT, BUILT = PALETTE[0], PALETTE[4]
SMALL = Rows(overlap=0, overlap_height=17, way=37, way_height=36, group_end=76, below=86, below_height=36)
LESSONS = sorted({lesson for part in PARTS for lesson in part.lessons})
LEGEND = (
    Cell(0, 0, "this lesson", LIT, outline=LIT, strength=0.55),
    Cell(0, 0, "built before", BUILT, strength=0.25),
    Cell(0, 0, "later", dashed=True),
    Cell(0, 0, "numbers: the lessons that build it", outline="none"),
)


def engine_page(lesson: str | None = None) -> Board:
    """Show the engine on one page: a request goes through it, one part per frame.

    lesson: such as "14", for a small still of the engine in which that lesson's part is lit.
    Raises ValueError for a lesson that builds no part.
    """
    if lesson is None:
        return walk_request()
    if lesson not in LESSONS:
        raise ValueError(f"lesson must be one of {', '.join(LESSONS)}, got {lesson!r}")
    cells = [*outlines(SMALL), *(part_cell(part, SMALL, **_look(part, lesson)) for part in PARTS)]
    built = ", ".join(_phrase(part) for part in PARTS if lesson in part.lessons)
    panel = Panel(cells, cell=(1, 1), lines=arrows(SMALL))
    return Board([Frame([panel])], f"the engine on one page; lesson {lesson} builds: {built}", legend=LEGEND)


def _phrase(part: Part) -> str:
    return part.name if part in (ATTENTION, OVERLAP) else f"the {part.name}"


def _look(part: Part, lesson: str) -> dict[str, Any]:
    if lesson in part.lessons:
        return {"colour": LIT, "outline": LIT, "strength": 0.55}
    if min(part.lessons) < lesson:
        return {"colour": BUILT, "strength": 0.25}
    return {"dashed": True}
