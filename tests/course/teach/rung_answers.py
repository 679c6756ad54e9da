"""Answers to the kernels of a3 and of lesson 23, made from the solutions with some texts in place of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from wrong_answers import assert_accepted, assert_refused, right_cases, wrong_cases

from course.teach.exercises.solutions import solution, solutions_of
from roseinfer.kernels import triton_mode

SOLUTIONS, OF_LESSON_23 = solutions_of("a3"), solutions_of("23")
interpreted = pytest.mark.skipif(triton_mode.MODE != "interpret", reason="the interpreter's own ways")


def in_interpreter(test: Callable) -> Callable:
    return pytest.mark.slow(pytest.mark.needs_triton(interpreted(test)))


Changes = tuple[str, str] | list[tuple[str, str]] | str  # one, several, or the whole body of the kernel


def kernel(exercise_id: str, changes: Changes = ()) -> Any:
    """The solution's kernel with these changes."""
    if isinstance(changes, str):
        source = (SOLUTIONS | OF_LESSON_23)[exercise_id]
        changes = (source[len(head(source)) :], changes)
    changed = dict([changes] if changes and isinstance(changes[0], str) else changes)
    return solution(exercise_id, changed, triton_mode=triton_mode, tl=triton_mode.language())


def head(source: str) -> str:
    """The decorator and the signature."""
    return source[: re.search(r"\):.*\n", source).end()]


def refused(exercise_id: str, cases: Mapping[str, tuple[Changes, str]]) -> Callable:
    """A test that each of these is refused with its message."""

    @in_interpreter
    @wrong_cases(exercise_id, cases)
    def test(answer: Changes, message: str) -> None:
        assert_refused(exercise_id, kernel(exercise_id, answer), message)

    return test


def accepted(exercise_id: str, cases: Mapping[str, Changes]) -> Callable:
    """A test that each of these passes."""

    @in_interpreter
    @right_cases(exercise_id, cases)
    def test(answer: Changes) -> None:
        assert_accepted(exercise_id, kernel(exercise_id, answer))

    return test
