"""exercise_grid: all exercises as a table in HTML, one column per lesson, one cell per exercise."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Protocol

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
LEGEND = (("✓", PASSED, "passed"), ("…", TRIED, "tried"), ("&nbsp;", NOT_TRIED, "not tried"))


class Marks(Protocol):
    """What is known of the exercises. attempts: number up to the first that passed. state: in words."""

    @property
    def exercises(self) -> Sequence[Exercise]: ...

    @property
    def passed(self) -> Collection[str]: ...

    @property
    def attempts(self) -> Mapping[str, int]: ...

    def state(self, e: Exercise) -> str: ...


def exercise_grid(marks: Marks) -> str:
    """Make a table with a column per lesson: a cell has a number and a sign, its tooltip the title and the state."""
    lessons = [(name, list(own)) for name, own in groupby(marks.exercises, lesson_of)]
    head = "".join(f"<th style='{EMPTY}; text-align: center'>{name}</th>" for name, _ in lessons)
    rows = zip_longest(*(own for _, own in lessons))
    body = "".join(f"<tr>{''.join(_cell(marks, each) for each in row)}</tr>" for row in rows)
    table = f"<table aria-label='exercises by lesson'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    signs = "".join(f"<td style='{look}'>{sign}</td><td style='{EMPTY}'>{says}</td>" for sign, look, says in LEGEND)
    return f"{table}<table aria-label='signs'><tbody><tr>{signs}</tr></tbody></table>"


def lesson_of(e: Exercise) -> str:
    return e.id.partition(".")[0]


def _cell(marks: Marks, e: Exercise | None) -> str:
    if e is None:
        return f"<td style='{EMPTY}'></td>"
    sign, look = ("", NOT_TRIED)
    if e.id in marks.passed:
        sign, look = "✓", PASSED
    elif marks.attempts[e.id]:
        sign, look = "…", TRIED
    tip = html.escape(f"{e.id} {e.title.replace('`', '')}: {marks.state(e)}")
    return f"<td style='{look}' title=\"{tip}\">{sign}{e.id.partition('.')[2]}</td>"
