"""Every mistake that a checker names, tried on that checker: a learner who makes it reads its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from course.teach.exercises.drawn import Comparison
from course.teach.exercises.exercise import find_all
from course.teach.exercises.wrong import Wrong

pytestmark = pytest.mark.slow
MARKS = dict.fromkeys(("a3", "23"), (pytest.mark.needs_triton,))  # there a mistake may be a kernel, which is run

# Of each exercise so many mistakes are tried in every run, and the others at night.
DAILY = 2


def named() -> Iterator[Any]:
    for exercise in find_all():
        every = [
            (comparison, part, why)
            for comparison in exercise.comparisons
            for part, expected in comparison.parts.items()
            for why in expected.mistakes
        ]
        for number, (comparison, part, why) in enumerate(every):
            marks = [*MARKS.get(exercise.id[:2], ()), *([pytest.mark.nightly] if number >= DAILY else [])]
            yield pytest.param(comparison, part, why, id=f"{exercise.id} {part}: {why}", marks=marks)


@pytest.mark.parametrize(("comparison", "part", "why"), list(named()))
def test_a_named_mistake_is_told_by_its_sentence(comparison: Comparison, part: str, why: str):
    """Its values go straight to the comparison: how they come out of an answer is tried by the lessons' tests."""

    rights = iter(comparison.rights)  # an answer gets the cases in their order

    def mistaken(*case):
        values = next(rights) | {part: comparison.parts[part].mistakes[why](*case)}
        return values if part else values[part]

    with pytest.raises(Wrong) as caught:
        comparison(mistaken, call=lambda answer, *case: answer(*case))
    assert str(caught.value).endswith(why)
