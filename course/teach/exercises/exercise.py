"""Exercises: registered by lessons, shown as cards, checked at once, with hints that come one by one.

    @exercise("01.2")  # its text is in lesson01/exercises.md, see text.py
    def bytes_of_cache(answer):
        ...  # raise Wrong("what is mistaken"), or return for PASS

An answer is a value, a function or a class. A stub never reaches the checker: an answer is one as long as it is what
`stub`, the code of the cell as it was handed out, defines. An answer that passes and is the library's own is not
counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from roseinfer.display.view import View, card, inline, prose

from ..journal import entries as journal
from . import lessons, load_lesson
from .attempt import describe_error, is_stub
from .drawn import Comparison
from .librarys_own import librarys_own
from .text import Text, text_of
from .wrong import Failed, Wrong

# It returns what is done once an answer counts, if anything: a call that gives a sentence.
Checker = Callable[..., Callable[[], str] | None]


@dataclass(frozen=True)
class Exercise(Text):
    """An exercise. checker: judges an answer (see the module). comparisons: its own, whose mistakes tests try, too."""

    checker: Checker
    comparisons: tuple[Comparison, ...]


_registered: dict[str, Exercise] = {}
_hints_shown: dict[str, int] = {}


def exercise(text: str | Text, *comparisons: Comparison) -> Callable[[Checker], Checker]:
    """Register the decorated checker. text: the id of a section of the lesson's exercises.md, or a text of its own."""

    def decorate(checker: Checker) -> Checker:
        register(text, checker, *comparisons)
        return checker

    return decorate


def register(text: str | Text, checker: Checker, *comparisons: Comparison) -> None:
    """Register a checker without the decorator. A second one of the same id replaces the first."""
    text = text_of(text) if isinstance(text, str) else text
    if isinstance(checker, Comparison):
        comparisons = (checker, *comparisons)
    _registered[text.id] = Exercise(**vars(text), checker=checker, comparisons=comparisons)


def find(exercise_id: str) -> Exercise:
    """Return an exercise. Raises ValueError for an id that no lesson registers, naming those of its lesson."""
    if exercise_id not in _registered:
        load_lesson(exercise_id)
    if exercise_id not in _registered:
        siblings = sorted(known for known in _registered if known.startswith(exercise_id[:3]))
        raise ValueError(f"exercise_id={exercise_id!r} is unknown; its lesson has {', '.join(siblings) or 'none'}")
    return _registered[exercise_id]


def find_all() -> list[Exercise]:
    """Return every exercise of every lesson, in their order."""
    for lesson in lessons():
        load_lesson(f"{lesson}.1")
    return [_registered[id] for id in sorted(_registered)]


@dataclass(frozen=True, repr=False)
class Verdict(View):
    """What check found; true when passed. note: for an answer that passes, shown and never compared."""

    exercise: Exercise
    outcome: Literal["PASS", "not attempted", "not yet"]
    mistake: str = ""
    note: str = ""

    def __bool__(self) -> bool:
        return self.outcome == "PASS"

    def __repr__(self) -> str:
        return f"{self.exercise.id} {self.outcome}" + (f": {self.mistake}" if self.mistake else "")

    def to_html(self) -> str:
        e = self.exercise
        title = f"<b>{e.id} {inline(e.title)}</b>"
        if self.outcome == "PASS":
            return card(f"<p>✓ {title}: PASS</p>" + (f"<p>{inline(self.note)}</p>" if self.note else ""), "good")
        if self.outcome == "not attempted":
            return card(f"<p>{title}: not attempted. Fill in the cell above, run it, then run this one.</p>")
        hint = f'<p class="rose-muted">Stuck? <code>teach.hint("{e.id}")</code></p>'
        return card(f"<p>{title}: not yet</p><p>{inline(self.mistake)}</p>{hint}", "not yet")


def check(exercise_id: str, answer: Any, **context: Any) -> Verdict:
    """Judge an answer: PASS, not attempted, or not yet with the mistake named. An error in it is a mistake, too.

    Args:
        exercise_id: of the exercise, such as "05.2".
        answer: your function, class or value.
        context: what the checker needs from the notebook besides, such as the model or a stage.

    An attempt is noted for teach.progress. Raises ValueError for an unknown exercise_id.
    """
    # The learner's code is the code that shares its globals with the cell that called check.
    verdict = _judge(find(exercise_id), answer, context, sys._getframe(1).f_globals)
    if verdict.outcome != "not attempted":
        journal.note_attempt(exercise_id, bool(verdict))
    return verdict


def _judge(task: Exercise, answer: Any, context: dict[str, Any], namespace: dict[str, Any]) -> Verdict:
    if is_stub(answer, task.stub):
        return Verdict(task, "not attempted")
    try:
        with _one_thread():
            keep = task.checker(answer, **context)
    except Failed as failed:
        return Verdict(task, "not yet", f"{failed}: {describe_error(failed.error, namespace)}")
    except Wrong as wrong:
        return Verdict(task, "not yet", str(wrong))
    except Exception as error:
        return Verdict(task, "not yet", describe_error(error, namespace))
    if name := librarys_own(answer):
        return Verdict(task, "not yet", f"it does what it should, and it is the library's own: `{name}`. Write yours")
    return Verdict(task, "PASS", note=keep() if keep else "")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run PyTorch's and Numba's loops on one thread.

    A checker runs thousands of operations on tensors of a few hundred values. Threads that wait for each other would
    take many times as long, above all on a busy machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, repr=False)
class Hint(View):
    exercise_id: str
    number: int
    of: int
    text: str

    def __repr__(self) -> str:
        return f"{self.exercise_id} hint {self.number} of {self.of}: {self.text}"

    def to_html(self) -> str:
        last = "" if self.number < self.of else '<span class="rose-muted"> (the last one)</span>'
        return card(f"<p><b>{self.exercise_id} hint {self.number} of {self.of}</b>{last}</p>{prose(self.text)}")


def hint(exercise_id: str, number: int | None = None) -> Hint:
    """Show the next hint, or a certain one. After the last one, show the last one again.

    Args:
        exercise_id: of the exercise, such as "05.2".
        number: of the hint, from 1. None: the next one.

    Raises ValueError for an unknown exercise_id, or a number that is not there.
    """
    hints = find(exercise_id).hints
    if number is None:
        number = min(_hints_shown.get(exercise_id, 0) + 1, len(hints))
        _hints_shown[exercise_id] = number
    elif number not in range(1, len(hints) + 1):
        raise ValueError(f"number must be 1 to {len(hints)} for {exercise_id}, got {number!r}")
    return Hint(exercise_id, number, len(hints), hints[number - 1])


@dataclass(frozen=True, repr=False)
class ExerciseCard(View):
    exercise: Exercise

    def __repr__(self) -> str:
        e = self.exercise
        return f"exercise {e.id}: {e.title}\n{e.facts}"

    def to_html(self) -> str:
        e = self.exercise
        hints = "".join(
            f"<details><summary>Hint {i}</summary>{prose(text)}</details>" for i, text in enumerate(e.hints, 1)
        )
        return card(
            f"<p><b>Exercise {e.id}: {inline(e.title)}</b> <span class='rose-muted'>{e.facts}</span></p>"
            f"{prose(e.task)}{hints}"
        )


def show_exercise(exercise_id: str) -> ExerciseCard:
    """Show the task of an exercise, with its hints folded. Raises ValueError for an unknown id."""
    return ExerciseCard(find(exercise_id))
