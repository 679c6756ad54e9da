"""Checkers of lesson 19: a draft from the text, what is accepted, rejection sampling, and how many tokens to draft."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import count
from random import Random
from typing import Any

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.exercise import exercise, register
from .distribution_checks import DISTRIBUTIONS, require_own_rng

# 19.1

Text = list[int]
LOOKUP = ("token_ids", "num_tokens", "longest", "shortest")


def ngram_draft(
    token_ids: Text,
    num_tokens: int,
    longest: int = 4,
    shortest: int = 2,
    starts: Callable[[Text, int], range] = lambda text, size: range(len(text) - size - 1, -1, -1),
    sizes: Callable[[int, int], range] = lambda longest, shortest: range(longest, shortest - 1, -1),
    takes: Callable[[Text, int, int, int], Text] = lambda text, start, size, n: text[start + size :][:n],
) -> Text:
    """Draft the tokens that follow an earlier match of the text's end.

    starts: where a match may begin, in the order in which they are tried. sizes: how many tokens are looked up, in the
    order in which they are tried. takes: the draft, of the text, a match, its size and num_tokens.
    """
    for size in sizes(longest, shortest):
        for start in starts(token_ids, size) if size <= len(token_ids) else ():
            if token_ids[start : start + size] == token_ids[len(token_ids) - size :]:
                return takes(token_ids, start, size, num_tokens)
    return []


def _repeating(text: Text, start: int, size: int, num_tokens: int) -> Text:
    period = len(text) - start - size
    return [text[start + size + i % period] for i in range(num_tokens)]


LOOKUP_CHANGES: dict[str, dict[str, Any]] = {
    "of several earlier places the last one counts": {"starts": lambda text, size: range(len(text) - size)},
    "the most tokens are looked up first: a longer match is the better one": {
        "sizes": lambda longest, shortest: range(shortest, longest + 1)
    },
    "the last tokens of the text match themselves, and nothing follows them: look only at earlier places": {
        "starts": lambda text, size: range(len(text) - size, -1, -1)
    },
    "an earlier place may overlap the last tokens: it only has to begin before them": {
        "starts": lambda text, size: range(len(text) - 2 * size, -1, -1)
    },
    "an earlier place may begin at index 0": {"starts": lambda text, size: range(len(text) - size - 1, 0, -1)},
    "the draft is what follows the match, without the match": {
        "takes": lambda text, start, size, n: text[start : start + size + n]
    },
    "the draft begins after the match, not at its beginning": {"takes": lambda text, start, size, n: text[start:][:n]},
    "the draft begins with the first token after the match": {
        "takes": lambda text, start, size, n: text[start + size + 1 :][:n]
    },
    "the draft goes no further than the end of the text": {"takes": _repeating},
    "fewer than num_tokens may follow the match: return those": {
        "takes": lambda text, start, size, n: text[start + size :][:n] if start + size + n <= len(text) else []
    },
    "a draft has at most num_tokens tokens": {"takes": lambda text, start, size, n: text[start + size :]},
    "if the last `longest` tokens are nowhere, look for fewer": {
        "sizes": lambda longest, shortest: range(longest, longest + 1)
    },
    "`shortest` tokens are looked up, too": {"sizes": lambda longest, shortest: range(longest, shortest, -1)},
    "fewer than `shortest` tokens are not looked up": {"sizes": lambda longest, shortest: range(longest, 0, -1)},
    "`longest` tokens are looked up, too": {"sizes": lambda longest, shortest: range(longest - 1, shortest - 1, -1)},
}  # fmt: skip


def _draw_text(rng: Random) -> tuple[Any, ...]:
    # Ids above 255, and ids that are a part of another one when they are written as text.
    alphabet = rng.choice(([0, 1], [7, 7, 8], [1, 11, 111], [2, 12, 50256]))
    text = [rng.choice(alphabet) for _ in range(rng.randint(1, 16))]
    longest = rng.randint(1, 5)
    return text, rng.randint(0, 6), longest, rng.randint(1, longest)


TEXTS = [
    ([3], 2),
    ([3, 3], 2),
    ([5, 6, 5, 6], 2),  # in the engine's own rule the draft would go on with 5, 6, 5
    ([7, 7, 7], 3),
    ([4, 5, 6, 4, 5], 4),
    ([4, 5, 1, 4, 5, 2, 4, 5], 1),
    ([9, 4, 5, 1, 8, 4, 5, 2, 9, 4, 5], 3),
    ([1, 2, 3, 4, 8, 0, 3, 4, 9, 1, 2, 3, 4], 2),
    ([1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 9, 2, 3, 4, 7, 1, 2, 3, 4], 2),
    ([5, 1, 2, 3, 4, 8, 0, 1, 2, 3, 4, 9, 5, 1, 2, 3, 4], 2),  # five tokens would be found elsewhere
    ([1, 2, 3], 0),
    ([6, 1, 6], 2, 1, 1),
    ([6, 1, 6], 2),
    *(([1, 2, other, 7, 8, 9, 1, 2], 1) for other in (3, 4)),  # alike but for what follows the match
    ([1, 2, 257, 258], 2),  # equal only in their last byte
    ([8, 9, 5, *range(100, 1100), 8, 9], 1),  # the match is far back
    # Equal only where tokens are digits of one number: 1 * base + (base + 1) is 2 * base + 1.
    *(([1, base + 1, 7, 2, 1], 2) for base in (1000, 50_257, 65_536, 100_000)),
    *draw(_draw_text, 120),
]
LOOKUPS = Comparison(
    TEXTS,
    Expected(ngram_draft, {why: partial(ngram_draft, **change) for why, change in LOOKUP_CHANGES.items()}),
    lambda *case: ", ".join(f"{name}={value}" for name, value in zip(LOOKUP, case, strict=False)),
)
register("19.1", LOOKUPS)

# 19.2


def num_accepted(draft: Text, chosen: Text) -> int:
    return next(i for i in count() if i == len(draft) or draft[i] != chosen[i])


def accept(draft: Text, chosen: Text) -> Text:
    return chosen[: num_accepted(draft, chosen) + 1]


def _draw_rows(rng: Random) -> tuple[Text, Text]:
    draft = [rng.choice((3, 4, 300)) for _ in range(rng.randint(0, 6))]
    chosen = [token if rng.random() < 0.75 else rng.choice((3, 4, 300)) for token in draft]
    return draft, [*chosen, rng.choice((3, 4, 300))]


ACCEPT_MISTAKES: dict[str, Callable[[Text, Text], Any]] = {
    "the model's own token after the accepted ones is missing": lambda d, c: d[: num_accepted(d, c)],
    "when the whole draft is accepted, the last row gives one more token": lambda d, c: accept(d, c)[: max(len(d), 1)],
    "after a rejected token nothing is accepted: its rows were computed on a wrong text": lambda d, c: (
        [a for a, b in zip(d, c, strict=False) if a == b] + [c[-1]]
    ),
    "the rows after a rejected token were computed on a wrong text: their choices do not count": lambda d, c: c,
    "a rejected token is not emitted": lambda d, c: [*d[: num_accepted(d, c) + 1], c[num_accepted(d, c)]],
    "in the place of a rejected token comes the model's, not the draft's": lambda d, c: (
        d[: num_accepted(d, c) + 1] if num_accepted(d, c) < len(d) else c
    ),
    "the model's own token is in the row after the last accepted one, not in the last row": lambda d, c: [
        *d[: num_accepted(d, c)], c[-1],
    ],
    "a draft is accepted token by token, not as a whole": lambda d, c: c if d == c[:-1] else c[:1],
    "row 0 agrees with draft[0]: it is what the model chooses before the draft": lambda d, c: (
        c[: num_accepted(d, c[1:]) + 1]
    ),
    "return the tokens, not how many they are": lambda d, c: num_accepted(d, c) + 1,
}  # fmt: skip
ROWS = [
    ([], [5]),
    ([3], [3, 4]),
    ([3], [4, 3]),
    ([3, 4], [3, 4, 5]),
    ([3, 4], [4, 4, 5]),
    ([3, 4], [3, 5, 4]),
    ([3, 4, 5], [3, 9, 5, 6]),
    ([3, 3, 3], [3, 3, 4, 3]),
    *(([44], [44 + 2**bits, 5]) for bits in (8, 16)),  # equal only in their last bytes
    ([0, 3], [0, 4, 5]),
    *(([3] * 40, [*[3] * 39, last, 5]) for last in (3, 4)),
    ([int("300")], [int("300"), 5]),  # equal, and not one object
    *draw(_draw_rows),
]
register("19.2", Comparison(ROWS, Expected(accept, ACCEPT_MISTAKES), inputs("draft", "chosen")))

# 19.3


@exercise("19.3", DISTRIBUTIONS)
def rejection_sampling(answer: Callable[..., Any]) -> None:
    DISTRIBUTIONS(answer)
    require_own_rng(answer)


# 19.4

Times = list[float]


def tokens_expected(num_drafts: int, acceptance: float) -> Fraction:
    return sum((Fraction(acceptance) ** i for i in range(num_drafts + 1)), Fraction(0))


def speeds(
    seconds: Times, acceptance: float, expected: Callable[[int, float], Any] = tokens_expected
) -> list[Fraction]:
    """Compute tokens per second with 0, 1, ... drafted tokens as fractions, so that equal speeds compare equal."""
    return [Fraction(expected(k, acceptance)) / Fraction(time) for k, time in enumerate(seconds)]


def best_num_tokens(seconds: Times, acceptance: float, expected: Callable[[int, float], Any] = tokens_expected) -> int:
    rates = speeds(seconds, acceptance, expected)
    return rates.index(max(rates))


def _first_peak(seconds: Times, acceptance: float) -> int:
    rates = speeds(seconds, acceptance)
    return next((k for k in range(len(rates) - 1) if rates[k + 1] <= rates[k]), len(rates) - 1)


def _last_best(seconds: Times, acceptance: float) -> int:
    rates = speeds(seconds, acceptance)
    return max(range(len(rates)), key=lambda k: (rates[k], k))


def _best_with_drafts(seconds: Times, acceptance: float) -> int:
    rates = speeds(seconds, acceptance)
    return rates.index(max(rates[1:] or rates))


def is_clear(seconds: Times, acceptance: float) -> bool:
    """Decide whether floats find the same k as exact numbers: the second best is at least a millionth slower."""
    best, *others = sorted(speeds(seconds, acceptance), reverse=True)
    return not others or others[0] < best * (1 - Fraction(1, 10**6))


def _draw_times(rng: Random) -> tuple[Times, float]:
    while True:
        most, step = rng.randint(1, 9), rng.choice((0.0, 0.02, 0.1, 0.3))
        jump, at = rng.choice((0.0, 0.5, 2.0)), rng.randint(1, 6)
        times = [round(1 + step * k + (jump if k >= at else 0) + rng.choice((0, 0.01)), 2) for k in range(most + 1)]
        acceptance = rng.choice((0.1, 0.3, 0.5, 0.7, 0.9, 0.95))
        if is_clear(times, acceptance):
            return times, acceptance


# Where two k are equally fast, all numbers are sums of powers of 2: floats have the exact speeds there.
TIMES: list[tuple[Times, float]] = [
    ([0.5], 0.5),
    ([1.0, 1.0], 0.0),
    ([1.0, 1.0, 1.0], 0.5),
    ([2.0, 1.0, 1.0], 0.0),
    ([0.5, 1.0, 1.5, 2.0], 1.0),
    ([1.0, 1.0, 1.0, 1.0], 1.0),
    ([1.0, 1.5, 1.75], 0.5),
    ([1.0, 3.0, 3.0, 3.0, 3.0, 3.0], 1.0),
    ([1.0, 1.96], 1.0),  # an acceptance of 1 is not a little less
    ([1.0, 1.9999], 1.0),
    ([1.0, 1.25, 2.0, 2.0, 2.0, 2.0, 2.0], 0.9),
    ([1.0, 1.1, 1.2, 1.3, 1.4], 0.05),
    ([1.0, 1.1, 1.2, 1.3, 1.4], 0.8),
    ([64.0 + k for k in range(64)], 0.98),
    *draw(_draw_times),
]
TIMES_MISTAKES: dict[str, Callable[[Times, float], Any]] = {
    "the second drafted token counts only if the first is accepted, too: its chance is a * a": partial(
        best_num_tokens, expected=lambda k, a: 1 + k * Fraction(a)
    ),
    "a step gives the model's own token, too, whatever is accepted": partial(
        best_num_tokens, expected=lambda k, a: tokens_expected(k, a) - 1
    ),
    "with k drafted tokens a step gives up to k + 1": partial(
        best_num_tokens, expected=lambda k, a: tokens_expected(k - 1, a)
    ),
    "a ** k is the chance that all k are accepted: a step with fewer accepted ones gives tokens, too": partial(
        best_num_tokens, expected=lambda k, a: 1 + k * Fraction(a) ** k
    ),
    "more tokens per step are not more tokens per second: divide by the time of the step": lambda seconds, a: (
        best_num_tokens([1.0] * len(seconds), a)
    ),
    "the fastest step does not give the most tokens per second": lambda seconds, a: seconds.index(min(seconds)),
    "of equally fast ones, return the smallest": _last_best,
    "a draft of 0 tokens may be the best": _best_with_drafts,
    "the speed may fall and rise again: compare all k": _first_peak,
    "return k, not the tokens per second": lambda seconds, a: float(max(speeds(seconds, a))),
    "return the number of drafted tokens, without the model's own": lambda seconds, a: best_num_tokens(seconds, a) + 1,
}
register(
    "19.4",
    Comparison(TIMES, Expected(best_num_tokens, TIMES_MISTAKES), inputs("seconds", "acceptance")),
)
