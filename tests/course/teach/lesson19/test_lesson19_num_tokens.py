"""19.4, the best number of tokens: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from wrong_answers import right_answers, wrong_answers

from course.teach.lesson19 import exercises


def with_drafts_only(seconds, acceptance):
    return 1 + exercises.best_num_tokens(seconds[1:], acceptance)


def divides_by_zero(seconds, acceptance):
    rates = [(1 - acceptance ** (k + 1)) / (1 - acceptance) / time for k, time in enumerate(seconds)]
    return rates.index(max(rates))


def sorts_in_place(seconds, acceptance):
    best = exercises.best_num_tokens(seconds, acceptance)
    seconds.sort()
    return best


def least_time_per_draft(seconds, acceptance):
    return min(range(len(seconds)), key=lambda k: seconds[k] / (k + 1))


def stops_too_early(seconds, acceptance):
    return exercises.best_num_tokens(seconds[:-1], acceptance) if len(seconds) > 1 else 0


def added_time(seconds, acceptance):
    """Compares what the drafts add with the time that they add."""
    gains = [
        (exercises.tokens_expected(k, acceptance) - 1) / Fraction(time - seconds[0]) if time > seconds[0] else 0
        for k, time in enumerate(seconds)
    ]
    return gains.index(max(gains))


def capped(seconds, acceptance):
    """Avoids a division by zero."""
    return exercises.best_num_tokens(seconds, min(acceptance, 0.95))


def a_list(seconds, acceptance):
    return [exercises.best_num_tokens(seconds, acceptance)] * 2


test_wrong_numbers = wrong_answers(
    "19.4",
    {
        "with drafts only": (with_drafts_only, "seconds=[0.5], acceptance=0.5: checking your answer raised ValueError"),
        "divides by zero": (divides_by_zero, "ZeroDivisionError"),
        "sorts the times": (sorts_in_place, "which is the caller's: make a copy"),
        "least time per token": (least_time_per_draft, "you return 1, expected 0"),
        "without the last": (stops_too_early, "seconds=[1.01, 1.03], acceptance=0.1: you return 0, expected 1"),
        "never certain": (capped, "seconds=[1.0, 1.96], acceptance=1.0: you return 0, expected 1"),
        "added tokens for added time": (added_time, "seconds=[1.0, 1.52], acceptance=0.1: you return 1, expected 0"),
        "two numbers": (a_list, "expected a number, got list"),
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


def test_equally_fast_steps_are_so_in_floats_too():
    tied = [case for case in exercises.TIMES if not exercises.is_clear(*case)]
    assert tied
    for seconds, acceptance in tied:
        rates = [sum(acceptance**i for i in range(k + 1)) / time for k, time in enumerate(seconds)]
        assert rates == [float(rate) for rate in exercises.speeds(seconds, acceptance)]
