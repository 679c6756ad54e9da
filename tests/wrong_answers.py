"""Wrong answers to the exercises, and unusual right ones: each lesson's tests try theirs, and all are counted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from roseinfer.teach import check

LESSON_TESTS = Path(__file__).parent / "teach"

registered: dict[str, dict[str, tuple[Any, str]]] = {}
accepted: dict[str, dict[str, Any]] = {}


def register_all() -> None:
    """Import every lesson's tests, so that their wrong answers are on the list."""
    if str(LESSON_TESTS) not in sys.path:
        sys.path.append(str(LESSON_TESTS))  # as pytest does it for a test that lies there
    for path in sorted(LESSON_TESTS.glob("test_lesson*.py")):
        importlib.import_module(path.stem)


def wrong_answers(exercise_id: str, cases: Mapping[str, tuple[Any, str]]) -> Callable:
    """Parametrise a test over (answer, message) of an exercise, and put the cases on the course's list.

    cases: the mistake in words -> what is handed in, and the telling part of what the checker must say to it.
    """
    _register(registered, exercise_id, cases)
    return pytest.mark.parametrize(("answer", "message"), list(cases.values()), ids=list(cases))


def right_answers(exercise_id: str, cases: Mapping[str, Any]) -> Callable:
    """The same over answers that must pass. cases: in which way it is unusual -> what is handed in."""
    _register(accepted, exercise_id, cases)
    return pytest.mark.parametrize("answer", list(cases.values()), ids=list(cases))


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
