"""Checkers of lesson 19: a draft from the text, what is accepted, rejection sampling, and how many tokens to draft."""

from __future__ import annotations

from random import Random
from typing import Any

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import register
from ..exercises.solutions import solution
from .distribution_checks import DISTRIBUTIONS, check_distribution

# 19.1

Text = list[int]
SIZES, STARTS = "range(longest, shortest - 1, -1)", "range(len(token_ids) - size - 1, -1, -1)"
DRAFT = "token_ids[after : after + num_tokens]"
LOOKUP_MISTAKES = {
    "of several earlier places the last one counts": {STARTS: "range(len(token_ids) - size)"},
    "the most tokens are looked up first: a longer match is the better one": {SIZES: "range(shortest, longest + 1)"},
    "the last tokens of the text match themselves, and nothing follows them: look only at earlier places": {
        STARTS: "range(len(token_ids) - size, -1, -1)"
    },
    "an earlier place may overlap the last tokens: it only has to begin before them": {
        STARTS: "range(len(token_ids) - 2 * size, -1, -1)"
    },
    "the draft begins after the match, not at its beginning": {DRAFT: "token_ids[start : start + num_tokens]"},
    "fewer than num_tokens may follow the match: return those": {
        DRAFT: f"{DRAFT} if after + num_tokens <= len(token_ids) else []"
    },
    "if the last `longest` tokens are nowhere, look for fewer": {SIZES: "[longest]"},
    "`shortest` tokens are looked up, too": {SIZES: "range(longest, shortest, -1)"},
}


def _draw_text(rng: Random) -> tuple[Any, ...]:
    # Ids above 255, and ids that are a part of another one when they are written as text.
    alphabet = rng.choice(([0, 1], [7, 7, 8], [1, 11, 111], [2, 12, 50256]))
    text = [rng.choice(alphabet) for _ in range(rng.randint(1, 16))]
    longest = rng.randint(1, 5)
    return text, rng.randint(0, 6), longest, rng.randint(1, longest)


def _describe_lookup(*case: Any) -> str:
    return inputs(*("token_ids", "num_tokens", "longest", "shortest")[: len(case)])(*case)


TEXTS = [
    # With the sizes of the stub, which decide here: one size fewer or more would find something else.
    ([6, 1, 6], 2),
    ([5, 6, 5, 6], 2),  # in the engine's own rule the draft would go on with 5, 6, 5
    ([1, 2, 3, 4, 6, 9, 2, 3, 4, 7, 1, 2, 3, 4], 2),
    ([5, 1, 2, 3, 4, 8, 0, 1, 2, 3, 4, 9, 5, 1, 2, 3, 4], 2),
    *(([1, 2, other, 7, 8, 9, 1, 2], 1) for other in (3, 4)),  # alike but for what follows the match
    ([1, 2, 257, 258], 2),  # equal only in their last byte
    ([8, 9, 5, *range(100, 1100), 8, 9], 1),  # the match is far back
    # Equal only where tokens are digits of one number: 1 * base + (base + 1) is 2 * base + 1.
    *(([1, base + 1, 7, 2, 1], 2) for base in (1000, 50_257, 65_536, 100_000)),
    *draw(_draw_text, 120),
]
register("19.1", Comparison(TEXTS, as_solved("19.1", LOOKUP_MISTAKES), _describe_lookup))

# 19.2

RIGHT, TOKENS = "draft[num_right] == chosen[num_right]", "chosen[: num_right + 1]"
ACCEPT_MISTAKES = {
    "the model's own token after the accepted ones is missing": {TOKENS: "chosen[:num_right]"},
    "the rows after a rejected token were computed on a wrong text: their choices do not count": {TOKENS: "chosen"},
    "in the place of a rejected token comes the model's, not the draft's": {
        TOKENS: "[*draft, chosen[-1]][: num_right + 1]"
    },
    "the model's own token is in the row after the last accepted one, not in the last row": {
        TOKENS: "[*draft[:num_right], chosen[-1]]"
    },
    "a draft is accepted token by token, not as a whole": {RIGHT: "draft == chosen[:-1]"},
    "row 0 agrees with draft[0]: it is what the model chooses before the draft": {
        RIGHT: "draft[num_right] == chosen[num_right + 1]"
    },
    "return the tokens, not how many they are": {TOKENS: "num_right + 1"},
}


def _draw_rows(rng: Random) -> tuple[Text, Text]:
    draft = [rng.choice((3, 4, 300)) for _ in range(rng.randint(0, 6))]
    chosen = [token if rng.random() < 0.75 else rng.choice((3, 4, 300)) for token in draft]
    return draft, [*chosen, rng.choice((3, 4, 300))]


ROWS = [
    *(([44], [44 + 2**bits, 5]) for bits in (8, 16)),  # equal only in their last bytes
    ([3], [4, 3]),
    ([0, 3], [0, 4, 5]),
    *(([3] * 40, [*[3] * 39, last, 5]) for last in (3, 4)),
    ([int("300")], [int("300"), 5]),  # equal, and not one object
    *draw(_draw_rows),
]
register("19.2", Comparison(ROWS, as_solved("19.2", ACCEPT_MISTAKES), inputs("draft", "chosen")))

register("19.3", check_distribution, DISTRIBUTIONS)

# 19.4

Times = list[float]
SPEED, BEST = "expected / time", "speeds.index(max(speeds))"
TIMES_MISTAKES = {
    "the second drafted token counts only if the first is accepted, too: its chance is a * a": {
        "acceptance * expected": "acceptance * len(speeds)"
    },
    "a step gives the model's own token, too, whatever is accepted": {SPEED: "(expected - 1) / time"},
    "a ** k is the chance that all k are accepted: a step with fewer accepted ones gives tokens, too": {
        "acceptance * expected": "acceptance ** len(speeds) * len(speeds)"
    },
    "more tokens per step are not more tokens per second: divide by the time of the step": {SPEED: "expected"},
    "of equally fast ones, return the smallest": {BEST: "max(range(len(speeds)), key=lambda k: (speeds[k], k))"},
    "the speed may fall and rise again: compare all k": {
        BEST: "next((k for k in range(len(speeds) - 1) if speeds[k + 1] <= speeds[k]), len(speeds) - 1)"
    },
    "return k, not the tokens per second": {BEST: "max(speeds)"},
}


def is_clear(seconds: Times, acceptance: float) -> bool:
    """Decide whether any way to compute the speeds finds the same k: the second best is at least a millionth slower."""
    speeds = solution("19.4", {BEST: "speeds"})(seconds, acceptance)
    best, *others = sorted(speeds, reverse=True)
    return not others or others[0] < best * (1 - 1e-6)


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
    ([64.0 + k for k in range(64)], 0.98),
    *draw(_draw_times),
]
register("19.4", Comparison(TIMES, as_solved("19.4", TIMES_MISTAKES), inputs("seconds", "acceptance")))
