"""20.4: whether a request is let in, by the time that it would wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from ..exercises.drawn import Comparison, Expected, draw, inputs

Seconds = list[float]


def mean_gap(ends: Seconds) -> float:
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def admit(
    num_queued: int,
    num_free: int,
    ends: Seconds,
    limit: float,
    gap: Callable[[Seconds], float] = mean_gap,
    place: Callable[[int, int], int] = lambda queued, free: queued + 1 - free,
    at_first: bool = True,
    is_within: Callable[[float, float], bool] = lambda wait, limit: wait <= limit,
) -> bool:
    """Decide whether a request is let in, by the time that it would wait.

    gap: seconds between two ends. place: how many answers have to end before the request runs. at_first: the decision
    where nothing is known yet.
    """
    if place(num_queued, num_free) <= 0:
        return True
    if len(ends) < 2:
        return at_first
    return is_within(place(num_queued, num_free) * gap(ends), limit)


MISTAKES: dict[str, Callable[..., bool]] = {
    "the request itself needs a slot, too: one more has to end": partial(
        admit, place=lambda queued, free: queued - free
    ),
    "slots that are free now need no answer to end": partial(admit, place=lambda queued, free: queued + 1),
    "n ends have n - 1 gaps between them": partial(admit, gap=lambda ends: (ends[-1] - ends[0]) / len(ends)),
    "the mean gap, not the last one": partial(admit, gap=lambda ends: ends[-1] - ends[-2]),
    "a wait equal to the limit is allowed": partial(admit, is_within=lambda wait, limit: wait < limit),
    "with fewer than two ends nothing is known: let the request in": partial(admit, at_first=False),
    "a wait beyond the limit is refused, not one within it": lambda queued, free, ends, limit: not admit(
        queued, free, ends, limit
    ),
    "a slot for it is free: let it in, however slow recent answers were": lambda queued, free, ends, limit: (
        len(ends) < 2 or max(queued + 1 - free, 1) * mean_gap(ends) <= limit
    ),
    "a request that would wait too long is refused": lambda queued, free, ends, limit: True,
}  # fmt: skip


def explain_truth(got: Any, want: bool) -> str | None:
    """Say how a truth value differs."""
    if got is None:
        return "got None: is a `return` missing?"
    if not isinstance(got, bool | np.bool_):
        return f"expected True or False, got {type(got).__name__}"
    return None if got == want else f"got {got}, expected {want}"


def _draw_state(rng: Random) -> tuple[int, int, Seconds, float]:
    latest = rng.choice((64, 64, 2, 0))  # quarters of a second: answers may end at the same time
    ends = sorted(rng.randint(0, latest) / 4 for _ in range(rng.choice((0, 1, 2, 3, 5, 9))))
    ends = [100.0 + end for end in ends]
    queued, free = rng.randint(0, rng.choice((9, 9, 500))), rng.choice((0, 0, 0, 1, 3, 9))
    wait = (queued + 1 - free) * mean_gap(ends) if len(ends) > 1 else 1.0
    near = round(4 * wait * rng.choice((0.5, 0.8, 1.0, 1.0, 1.2, 2.0))) / 4  # where mistakes decide otherwise
    return queued, free, ends, max(0.25, near)


STATES: list[tuple[int, int, Seconds, float]] = [
    (0, 1, [], 1.0),
    (0, 0, [], 1.0),
    (0, 0, [1.0, 2.0], 1.0),
    (0, 0, [1.0, 2.0], 0.5),
    (1, 0, [1.0, 2.0], 1.0),
    (1, 1, [1.0, 2.0], 1.0),
    (0, 1, [1.0, 9.0], 1.0),
    (2, 0, [1.0, 2.0, 5.0], 6.0),
    (2, 0, [1.0, 4.0, 5.0], 3.0),
    (2, 0, [1.0, 1.0], 1.0),
    (3, 0, [1.0, 1.0, 3.0], 3.5),
    (0, 0, [1.0, *map(float, range(41, 81))], 1.5),  # all gaps count, not the latest ones
    *draw(_draw_state, 120),
]
ADMISSIONS = Comparison(
    STATES, Expected(admit, MISTAKES, explain_truth), inputs("num_queued", "num_free", "ends", "limit")
)
