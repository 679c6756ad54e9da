"""Checkers of lesson 19: a draft from the text, what is accepted, rejection sampling, and how many tokens to draft."""

from __future__ import annotations

from random import Random
from typing import Any

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import register
from .distribution_checks import DISTRIBUTIONS

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
    "the draft begins after the match, not at its beginning": {DRAFT: "token_ids[start : start + num_tokens]"},
    "fewer than num_tokens may follow the match: return those": {
        DRAFT: f"{DRAFT} if after + num_tokens <= len(token_ids) else []"
    },
    "if the last `longest` tokens are nowhere, look for fewer": {SIZES: "[longest]"},
}


def _draw_text(rng: Random) -> tuple[Any, ...]:
    # Ids that are alike in their last bytes, as text, or as digits of one number.
    large = rng.choice((256, 1000, 50_257, 65_536, 100_000))
    alphabet = rng.choice(([7, 7, 8], [1, 11, 111], [0, 1, large]))
    text = [rng.choice(alphabet) for _ in range(rng.randint(1, 16))]
    longest = rng.randint(1, 5)
    case = text, rng.randint(0, 6), longest, rng.randint(1, longest)
    return case[: rng.choice((2, 4))]  # also with the sizes of the stub


def _describe_lookup(*case: Any) -> str:
    return inputs(*("token_ids", "num_tokens", "longest", "shortest")[: len(case)])(*case)


TEXTS = [
    ([5, 1, 2, 3, 4, 8, 0, 1, 2, 3, 4, 9, 5, 1, 2, 3, 4], 2),  # its last 5 tokens are found, too
    ([8, 9, 5, *range(100, 1100), 8, 9], 1),  # the match is far back
    *draw(_draw_text, 300),
]
register("19.1", Comparison(TEXTS, as_solved("19.1", LOOKUP_MISTAKES), _describe_lookup))

# 19.2

RIGHT, TOKENS = "draft[num_right] == chosen[num_right]", "chosen[: num_right + 1]"
ACCEPT_MISTAKES = {
    "the model's own token after the accepted ones is missing": {TOKENS: "chosen[:num_right]"},
    "the rows after a rejected token were computed on a wrong text: their choices do not count": {TOKENS: "chosen"},
    "the model's own token is in the row after the last accepted one, not in the last row": {
        TOKENS: "[*draft[:num_right], chosen[-1]]"
    },
    "row 0 agrees with draft[0]: it is what the model chooses before the draft": {
        RIGHT: "draft[num_right] == chosen[num_right + 1]"
    },
}


IDS = (3, 44, 44 + 2**8, 44 + 2**16)  # three are equal in their last byte


def _draw_rows(rng: Random) -> tuple[Text, Text]:
    draft = rng.choices(IDS, k=rng.choice((0, 1, 2, 3, 4, 5, 6, 40)))
    rate = rng.choice((0.75, 0.99))
    chosen = [token if rng.random() < rate else rng.choice(IDS) for token in draft]
    return draft, [*chosen, rng.choice(IDS)]


ROWS = [([int("300")], [int("300"), 5]), *draw(_draw_rows, 120)]  # the first are equal, and not one object
register("19.2", Comparison(ROWS, as_solved("19.2", ACCEPT_MISTAKES), inputs("draft", "chosen")))

register("19.3", DISTRIBUTIONS)

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
}


def _draw_times(rng: Random) -> tuple[Times, float]:
    """Draw the times of steps, which may jump somewhere. A part of their own keeps two k from being equally fast."""
    step, jump, at = rng.choice((0.0, 0.02, 0.3)), rng.choice((0.0, 0.5, 2.0)), rng.randint(1, 4)
    times = [1 + step * k + (jump if k >= at else 0) + rng.randint(0, 99) / 10**4 for k in range(rng.randint(2, 10))]
    return [round(time, 4) for time in times], rng.choice((0.0, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0))


TIMES: list[tuple[Times, float]] = [
    ([1.0, 1.5, 1.75], 0.5),  # all are equally fast, and floats have the exact speeds
    ([0.5, 1.0, 1.5, 2.0], 1.0),
    ([1.0, 1.9999], 1.0),  # an acceptance of 1 is not a little less
    ([64.0 + k for k in range(64)], 0.98),
    *draw(_draw_times, 100),
]
register("19.4", Comparison(TIMES, as_solved("19.4", TIMES_MISTAKES), inputs("seconds", "acceptance")))
