"""progress: which exercises of the course are passed, and what to do next."""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass

from roseinfer.display.view import View, card, inline

from ..exercises.exercise import Exercise, find_all
from . import entries as journal
from .exercise_grid import exercise_grid


@dataclass(frozen=True, repr=False)
class Progress(View):
    """View of the passed exercises. exercises: of the whole course. attempts: number up to the first that passed.

    note: where the record is, in HTML.
    """

    exercises: list[Exercise]
    passed: frozenset[str]
    attempts: Counter[str]
    note: str

    def __repr__(self) -> str:
        return "progress of the course"  # not how many exercises it has: each new one would change every notebook

    @property
    def open(self) -> list[Exercise]:
        return [e for e in self.exercises if e.id not in self.passed]

    def to_html(self) -> str:
        done = len(self.exercises) - len(self.open)
        summary = f"<p>{self._passed(done)} {self._what_is_next()}</p>"
        grid = exercise_grid(self.exercises, self.passed, self.attempts, self.state)
        parts = [summary, grid, self._tried(), f"<p class='rose-muted'>{self.note}</p>"]
        return card("".join(parts), "plain" if self.open else "good")

    def _passed(self, done: int) -> str:
        every, left = len(self.exercises), _duration(sum(e.minutes for e in self.open))
        if not done:
            return f"<b>{every} exercises</b> go with the lessons, about {left} in all."
        passed = f"<b>{done} of {every} exercises passed</b>"
        return f"{passed}, about {left} to go." if self.open else f"{passed}: the whole course."

    def _what_is_next(self) -> str:
        if not self.open:
            return ""
        if not self.passed:
            first, advice = self.open[0], "Begin with"
        else:  # of equally important ones, the first
            first, advice = max(self.open, key=lambda e: e.importance), "Most important now"
        return f"{advice}: {first.id}, {inline(first.title)} ({first.minutes} minutes)."

    def _tried(self) -> str:
        tried = [f"<li>{e.id} {inline(e.title)}: {self.state(e)}</li>" for e in self.open if self.attempts[e.id]]
        return f"<p>Tried, not passed yet:</p><ul>{''.join(tried)}</ul>" if tried else ""

    def state(self, e: Exercise) -> str:
        n = self.attempts[e.id]
        times = "1 attempt" if n == 1 else f"{n} attempts"
        if e.id in self.passed:
            return f"passed, {times}"
        return f"not yet, {times}" if n else f"not tried, {e.minutes} minutes"


def _duration(minutes: int) -> str:
    return f"{minutes} minutes" if minutes < 90 else f"{round(minutes / 60)} hours"


def progress(*, reset: bool = False) -> Progress:
    """Show what teach.check has passed so far, in all notebooks. reset=True starts again and keeps the old file.

    The record is a small file in the user's data folder, or the file that ROSEINFER_PROGRESS names; with the value
    "off" there is none. Raises OSError when the file cannot be reset.
    """
    aside = journal.clear() if reset else None
    passed: set[str] = set()
    attempts: Counter[str] = Counter()
    for entry in journal.entries():
        id = entry.get("exercise")
        if id is not None and id not in passed:
            attempts[id] += 1
            if entry["passed"]:
                passed.add(id)
    return Progress(find_all(), frozenset(passed), attempts, _note(aside.name if aside else None))


def _note(aside: str | None) -> str:
    path = journal.place()
    if path is None:
        return f"This run kept no record: <code>{journal.PLACE}={journal.OFF}</code>. By default one is kept."
    begun = f" Started again; the old record is in <code>{html.escape(aside)}</code> beside it." if aside else ""
    return f"Kept in <code>{html.escape(str(path))}</code>.{begun}"
