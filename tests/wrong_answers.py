"""Wrong answers to the exercises, and unusual right ones: each lesson's tests try theirs, and all are counted.

A mistake that a checker names is not repeated here: it is in the checker's table, and tried there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiers import in_every_run

from course.teach import check
from course.teach.exercises.exercise import find

# Each answer is compiled, run in a process of its own, put as a query, or judged by long runs.
PIECES = ("05.4", "10.4", "11.5", "14.5", "15.5")
KERNELS = ("23.2", "23.3", *(f"a3.{number}" for number in range(1, 10)))
SLOW = (*PIECES, "00.2", "02.2", "08.3", "18.1", "19.3", "22.4", "23.4", "a2.1", "a2.2")
# Each answer is judged by runs of seconds: the first ones are tried in every run, the others at night.
LONG = (*PIECES, *KERNELS, "07.2", "08.4", "13.3", "14.4", "15.4", "16.4", "22.4", "23.4")
FIRST = 3
LESSON_TESTS = Path(__file__).parent / "course" / "teach"

registered: dict[str, dict[str, tuple[Any, str]]] = {}
accepted: dict[str, dict[str, Any]] = {}


def register_all() -> None:
    """Import every lesson's tests, so that their wrong answers are on the list."""
    for path in sorted(LESSON_TESTS.glob("lesson??/test_lesson*.py")):
        for folder in (LESSON_TESTS, path.parent):
            if str(folder) not in sys.path:
                sys.path.append(str(folder))  # as pytest does it for a test that lies there
        importlib.import_module(path.stem)


def named(exercise_id: str) -> list[str]:
    """The sentences of the mistakes that a checker names: tests/course/teach/test_named_mistakes.py tries each."""
    parts = [part for comparison in find(exercise_id).comparisons for part in comparison.parts.values()]
    return [why for part in parts for why in part.mistakes]


def wrong_answers(exercise_id: str, cases: Mapping[str, tuple[Any, str]], **context: Any) -> Callable:
    """A test that each of these answers is refused with its message: `test_wrong_times = wrong_answers("14.3", {...})`.

    cases: the mistake in words -> what is handed in, and the telling part of what the checker must say to it.
    context: as for check; a string is the name of a fixture.
    """

    @wrong_cases(exercise_id, cases)
    def test(request: pytest.FixtureRequest, answer: Any, message: str) -> None:
        assert_refused(exercise_id, answer, message, **_filled(context, request))

    return test


def right_answers(exercise_id: str, cases: Mapping[str, Any], **context: Any) -> Callable:
    """A test that each of these answers passes. cases: in which way it is unusual -> what is handed in.

    Slow: the checker goes through all of its cases.
    """

    @pytest.mark.slow
    @right_cases(exercise_id, cases)
    def test(request: pytest.FixtureRequest, answer: Any) -> None:
        assert_accepted(exercise_id, answer, **_filled(context, request))

    return test


def wrong_cases(exercise_id: str, cases: Mapping[str, tuple[Any, str]]) -> Callable:
    """Parametrise a test of your own over (answer, message), and put the cases on the course's list."""
    _register(registered, exercise_id, cases)
    daily = list(cases)[:FIRST] if exercise_id in LONG else cases
    tried = pytest.mark.parametrize(("answer", "message"), in_every_run(cases, daily))
    if exercise_id in SLOW:
        return lambda test: pytest.mark.slow(tried(test))
    return tried


def right_cases(exercise_id: str, cases: Mapping[str, Any]) -> Callable:
    """The same over answers that must pass: the first one in every run, the others at night."""
    _register(accepted, exercise_id, cases)
    return pytest.mark.parametrize("answer", in_every_run({id: (cases[id],) for id in cases}, list(cases)[:1]))


def changed(base: type, **members: Any) -> type:
    """A subclass of a right class with these members in place of its own: an answer with one mistake.

    A member that needs the method it replaces calls it on the class: `changed(Room, kv=lambda room: Room.kv(room)[0])`.
    """
    return type("Answer", (base,), members)


def edited(source: str, *changes: tuple[str, str]) -> str:
    """The source of a solution with some texts in place of others."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


def _filled(context: Mapping[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        name: request.getfixturevalue(value) if isinstance(value, str) else value for name, value in context.items()
    }


def _register(all_cases: dict[str, dict[str, Any]], exercise_id: str, cases: Mapping[str, Any]) -> None:
    known = all_cases.setdefault(exercise_id, {})
    if twice := known.keys() & cases:
        raise ValueError(f"cases of {exercise_id} must have new names, got {', '.join(sorted(twice))} again")
    known.update(cases)


def assert_refused(exercise_id: str, answer: Any, message: str, **context: Any) -> None:
    """The answer is judged, does not pass, and is told `message`. context: as for check."""
    verdict = check(exercise_id, answer, **context)
    assert verdict.outcome == "not yet", verdict
    assert message in verdict.mistake, verdict


def assert_accepted(exercise_id: str, answer: Any, **context: Any) -> None:
    """The answer passes. context: as for check."""
    verdict = check(exercise_id, answer, **context)
    assert verdict.outcome == "PASS", verdict
