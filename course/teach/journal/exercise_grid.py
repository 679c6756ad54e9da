"""exercise_grid: all exercises as a table in HTML, one column per lesson, one cell per exercise."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

from roseinfer.display.view import BAR

if TYPE_CHECKING:
    from ..exercises.exercise import Exercise

# Inline, as JupyterLab drops <style> in a notebook that has only been opened. Colours at half strength read on both
# themes; a sign goes with each.
CELL = "width: 18px; min-width: 18px; padding: 1px; text-align: center; border: 2px solid"
EMPTY = "border: none; padding: 1px"
PASSED = f"{CELL} {BAR['good']}; background-color: {BAR['good']}80"
TRIED = f"{CELL} {BAR['not yet']}; background-color: {BAR['not yet']}55"
NOT_TRIED = f"{CELL} {BAR['plain']}55"
LEGEND = (("✓", PASSED, "passed"), ("…", TRIED, "tried"), ("", NOT_TRIED, "not tried"))


def exercise_grid(
    exercises: Iterable[Exercise], passed: Collection[str], tried: Collection[str], state: Callable[[Exercise], str]
) -> str:
    """Make a table with a column per lesson: a cell has a number and a sign, its tooltip the title and the state."""

    def cell(e: Exercise | None) -> str:
        if e is None:
            return f"<td style='{EMPTY}'></td>"
        sign, look, _ = LEGEND[0 if e.id in passed else 1 if e.id in tried else 2]
        tip = html.escape(f"{e.id} {e.title.replace('`', '')}: {state(e)}")
        return f"<td style='{look}' title=\"{tip}\">{sign}{e.id.partition('.')[2]}</td>"

    lessons = [(name, list(own)) for name, own in groupby(exercises, lesson_of)]
    head = "".join(f"<th style='{EMPTY}; text-align: center'>{name}</th>" for name, _ in lessons)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in zip_longest(*(own for _, own in lessons)))
    table = f"<table aria-label='exercises by lesson'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    signs = "".join(
        f"<td style='{look}'>{sign or '&nbsp;'}</td><td style='{EMPTY}'>{says}</td>" for sign, look, says in LEGEND
    )
    return f"{table}<table aria-label='signs'><tbody><tr>{signs}</tr></tbody></table>"


def lesson_of(e: Exercise) -> str:
    return e.id.partition(".")[0]
