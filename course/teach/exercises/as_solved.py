"""What an exercise expects, by its solution; a mistake is the solution with some of its texts replaced.

MISTAKES = {"one may not be enough": {"while sum(": "if sum("}}
register("14.2", Comparison(POOLS, as_solved("14.2", MISTAKES), inputs("lengths", "block_size", "num_blocks")))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from .drawn import Expected
from .explain import explain_value
from .solutions import solution

# Texts of the solution -> what a mistake has in their place; or a function of an answer's arguments.
Mistake = Mapping[str, str] | Callable[..., Any]
Given = Callable[..., tuple[Any, ...]]


def as_is(value: Any) -> Any:
    return value


def the_case(*case: Any) -> tuple[Any, ...]:
    return case


def as_solved(
    exercise_id: str,
    mistakes: Mapping[str, Mistake],
    explain: Callable[[Any, Any], str | None] = explain_value,
    given: Given = the_case,
    part: Callable[[Any], Any] = as_is,
    **names: Any,
) -> Expected:
    """Expect what the solution returns.

    Args:
        exercise_id: of the exercise, such as "05.2".
        mistakes: maps why an answer is wrong to the mistake; a function returns the mistaken value itself.
        explain: compares two values, see Expected.
        given: makes an answer's arguments of a case.
        part: takes the value out of what the solution returns.
        names: global names of the notebook that the solution uses, such as torch=torch.
    """

    def value(answer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *case: part(answer(*given(*case)))

    def mistaken(mistake: Mistake) -> Callable[..., Any]:
        if isinstance(mistake, Mapping):
            return value(solution(exercise_id, mistake, **names))
        return lambda *case: mistake(*given(*case))

    wrong = {why: mistaken(mistake) for why, mistake in mistakes.items()}
    return Expected(value(solution(exercise_id, **names)), wrong, explain)


def as_solved_by_name(
    exercise_id: str, mistakes: Mapping[str, Mapping[str, Mistake]], **options: Any
) -> dict[str, Expected]:
    """Expect several values: the solution returns a tuple of them.

    Args:
        exercise_id: of the exercise, such as "05.2".
        mistakes: maps each value's name, in the order of the tuple, to the mistakes that are told for it.
        options: explain, given and names, as for as_solved.
    """
    return {
        name: as_solved(exercise_id, wrong, part=itemgetter(place), **options)
        for place, (name, wrong) in enumerate(mistakes.items())
    }
