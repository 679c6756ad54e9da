"""The checker of 19.3: how often an answer emits what, in many runs, against the exact distribution.

An answer may use its random numbers in any way and in any order, so no single run is right or wrong. All probabilities
are sixteenths: floats hold them exactly, and what has probability 0 never comes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from math import log, sqrt
from random import Random
from typing import Any

import numpy as np

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.explain import plain
from ..exercises.wrong import Wrong

RUNS = 600  # of each case
RARE = 1e-9  # at most this is the probability that a right answer's count of one outcome is refused
PARTS = 16  # all probabilities are multiples of 1 / 16

Row = list[float]
Drafted = tuple[list[int], list[Row], list[Row]]  # draft, draft_probs, model_probs
Counts = Mapping[str, float]  # the emitted tokens as text -> how often they come in all runs


def expected_counts(
    draft: list[int],
    draft_probs: list[Row],
    model_probs: list[Row],
    accept: Callable[[float, float], float] = lambda p, q: p / q,
    redraw: Callable[[float, float], float] = lambda p, q: max(p - q, 0),
) -> Counts:
    """Compute how often each output is expected in all runs.

    accept: the probability of accepting a token, of its p and q. redraw: the weight of a token that replaces it, of
    that token's p and q.
    """
    counts: dict[str, float] = defaultdict(float)
    left = float(RUNS)

    def share(times: float, accepted: list[int], weights: Row) -> None:
        for token, weight in enumerate(weights):
            counts[str([*accepted, token])] += times * weight / (sum(weights) or 1)

    for i, (token, q, p) in enumerate(zip(draft, draft_probs, model_probs, strict=False)):
        rejected = left * max(0.0, 1 - accept(p[token], q[token]))
        share(rejected, draft[:i], list(map(redraw, p, q)))
        left -= rejected
    share(left, draft, model_probs[-1])
    return {tokens: times for tokens, times in counts.items() if times}


MISTAKES: dict[str, dict[str, Any]] = {
    "a rejected token is replaced by one from max(p - q, 0), not from p": {"redraw": lambda p, q: p},
    "where p is below q, the weight is 0: not the distance between them": {"redraw": lambda p, q: abs(p - q)},
    "p / q is upside down: a token that the draft model gives too often is rejected": {
        "accept": lambda p, q: q / p if p else 1
    },
    "the draft model's q counts, too: accept with min(1, p / q), not with p": {"accept": lambda p, q: p},
    "every drafted token is accepted: some have to be rejected, with probability 1 - p / q": {"accept": lambda p, q: 1},
}


def explain_counts(got: Counts, want: Counts) -> str | None:
    """Name an outcome that comes more often or more rarely than chance explains; None if there is none."""
    for tokens in {**got, **want}:
        times, mean = got.get(tokens, 0), want.get(tokens, 0)
        if abs(times - mean) > most_by_chance(mean):
            about = f"about {mean:.0f} times" if mean else "never"
            return f"in {RUNS} runs you return {tokens} {times:.0f} times, expected {about}"
    return None


def most_by_chance(mean: float) -> float:
    """Return how far a count may be from its mean: farther off it is with a probability of at most RARE (Bernstein)."""
    x = log(2 / RARE)
    return x / 3 + sqrt(x * x / 9 + 2 * x * mean * (1 - mean / RUNS)) if mean else 0


def count_runs(answer: Callable[..., Any], draft: list[int], draft_probs: list[Row], model_probs: list[Row]) -> Counts:
    """Count how often an answer emits what. Raises Wrong where equal generators give different tokens."""
    p = np.array(model_probs)
    q = np.array(draft_probs).reshape(-1, p.shape[1])  # [0, V] where nothing is drafted
    for array in (q, p):
        array.setflags(write=False)
    rngs, counts = (np.random.default_rng(0), np.random.default_rng(0)), Counter[str]()
    with np.errstate(all="ignore"):  # a right answer may compute 0 / 0 for a token that it never draws
        for _ in range(RUNS):
            one, other = (_emitted(answer, draft, q, p, rng) for rng in rngs)
            if one != other:
                raise Wrong("generators with one seed give different tokens: take every random number from rng")
            counts[one] += 1
    return counts


def _emitted(answer: Callable[..., Any], draft: list[int], *rest: Any) -> str:
    handed = list(draft)
    tokens = plain(answer(handed, *rest))
    if handed != draft:
        raise Wrong("you have changed what you were called with, which is the caller's: make a copy")
    return str(tokens)


def _draw_row(rng: Random, vocab_size: int) -> Row:
    """Draw probabilities in sixteenths. Small vocabularies and few parts give zeros and rows with one token, too."""
    times = Counter(rng.choices(range(vocab_size), [rng.choice((0, 1, 3)) + 0.01 for _ in range(vocab_size)], k=PARTS))
    return [times[token] / PARTS for token in range(vocab_size)]


def _draw_draft(rng: Random) -> Drafted:
    vocab_size, num_drafts = rng.randint(2, 4), rng.randint(0, 3)
    q = [_draw_row(rng, vocab_size) for _ in range(num_drafts)]
    draft = [rng.choices(range(vocab_size), row)[0] for row in q]
    return draft, q, [_draw_row(rng, vocab_size) for _ in range(num_drafts + 1)]


CASES: list[Drafted] = [
    ([1], [[0.5, 0.5]], [[0.75, 0.25], [0.75, 0.25]]),
    ([0], [[1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]]),  # the model never chooses it
    ([0], [[1.0, 0.0, 0.0, 0.0]], [[0.0, 0.1875, 0.1875, 0.625], [0.25, 0.25, 0.25, 0.25]]),  # unequal rest
    *draw(_draw_draft),
]
DISTRIBUTIONS = Comparison(
    CASES,
    Expected(expected_counts, {why: partial(expected_counts, **how) for why, how in MISTAKES.items()}, explain_counts),
    inputs("draft", "draft_probs", "model_probs"),
    count_runs,
)
