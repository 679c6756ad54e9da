"""19.4, the best number of tokens: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution

best_num_tokens = solution("19.4")


def divides_by_zero(seconds, acceptance):
    rates = [(1 - acceptance ** (k + 1)) / (1 - acceptance) / time for k, time in enumerate(seconds)]
    return rates.index(max(rates))


def sorts_in_place(seconds, acceptance):
    best = best_num_tokens(seconds, acceptance)
    seconds.sort()
    return best


def capped(seconds, acceptance):
    """Avoids a division by zero."""
    return best_num_tokens(seconds, min(acceptance, 0.95))


test_wrong_numbers = wrong_answers(
    "19.4",
    {
        "divides by zero": (divides_by_zero, "ZeroDivisionError"),
        "sorts the times": (sorts_in_place, "which is the caller's: make a copy"),
        "never certain": (capped, "seconds=[1.0, 1.9999], acceptance=1.0: you return 0, expected 1"),
    },
)


def by_arrays(seconds, acceptance):
    return np.argmax(np.cumsum(acceptance ** np.arange(len(seconds))) / np.array(seconds))


def by_time_per_token(seconds, acceptance):
    """Horner's rule, and the least time per token."""
    expected, best = 0, None
    for k, time in enumerate(seconds):
        expected = 1 + acceptance * expected
        if best is None or time / expected < best[0]:
            best = (time / expected, k)
    return best[1]


test_right_numbers = right_answers("19.4", {"arrays": by_arrays, "time per token": by_time_per_token})
