"""What an exercise expects, by its solution; a mistake is the solution with some of its texts replaced.

MISTAKES = {"one may not be enough": {"while sum(": "if sum("}}
register("14.2", Comparison(POOLS, as_solved("14.2", MISTAKES), inputs("lengths", "block_size", "num_blocks")))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .drawn import Call, Expected, values_of
from .explain import explain_value
from .solutions import solution

# Texts of the solution -> what a mistake has in their place; or a function of a case that returns the mistaken value.
Mistake = Mapping[str, str] | Callable[..., Any]


def as_solved(
    exercise_id: str,
    mistakes: Mapping[str, Mistake],
    explain: Callable[[Any, Any], str | None] = explain_value,
    call: Call | None = None,
    **names: Any,
) -> Expected:
    """Expect what the solution returns.

    Args:
        exercise_id: of the exercise, such as "05.2".
        mistakes: maps why an answer is wrong to the mistake.
        explain: compares two values, see Expected.
        call: what to do with the solution, as Comparison has it for answers. None: call it with the case.
        names: global names of the notebook that the solution uses, such as torch=torch.
    """

    def on_cases(answer: Callable[..., Any]) -> Callable[..., Any]:
        return (lambda *case: call(answer, *case)) if call else answer

    def mistaken(mistake: Mistake) -> Callable[..., Any]:
        return mistake if callable(mistake) else on_cases(solution(exercise_id, mistake, **names))

    wrong = {why: mistaken(mistake) for why, mistake in mistakes.items()}
    return Expected(on_cases(solution(exercise_id, **names)), wrong, explain)


def as_solved_by_name(
    exercise_id: str,
    mistakes: Mapping[str, Mapping[str, Mistake]],
    explain: Callable[[Any, Any], str | None] = explain_value,
    call: Call | None = None,
    **names: Any,
) -> dict[str, Expected]:
    """Expect several values of the solution, each by its name.

    Args:
        exercise_id: of the exercise, such as "05.2".
        mistakes: maps the name of each value to the mistakes that are told for it.
        explain: compares two values, see Expected.
        call: what to do with the solution: it returns a dict of the values by name, and maybe of more. None: call it
            with the case, and take its values in the order of their names.
        names: global names of the notebook that the solution uses, such as torch=torch.
    """
    by_name = call or values_of(*mistakes)

    def one(name: str) -> Call:
        return lambda answer, *case: by_name(answer, *case)[name]

    return {name: as_solved(exercise_id, wrong, explain, one(name), **names) for name, wrong in mistakes.items()}
