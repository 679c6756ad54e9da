"""The checker of 19.3: how often an answer emits what, in many runs, against the exact distribution.

An answer may use its random numbers in any way and in any order, so no single run is right or wrong. All probabilities
are sixteenths: floats hold them exactly, and what has probability 0 never comes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from math import log
from random import Random
from typing import Any

import numpy as np

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.explain import plain
from ..exercises.wrong import Wrong

RUNS = 300  # of each case
RARE = 1e-9  # at most this is the probability that a right answer is refused in a case
PARTS = 16  # all probabilities are multiples of 1 / 16

Row = list[float]
Drafted = tuple[list[int], list[Row], list[Row]]  # draft, draft_probs, model_probs
Counts = Mapping[tuple[int, ...], float]  # emitted tokens -> how often they come in all runs


def ratio(p: float, q: float) -> float:
    return min(1.0, p / q)


def residual(p: Row, q: Row) -> Row:
    return [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]


def expected_counts(
    draft: list[int],
    draft_probs: list[Row],
    model_probs: list[Row],
    accept: Callable[[float, float], float] = ratio,
    redraw: Callable[[Row, Row], Row] = residual,
    last: Callable[[list[Row], list[Row]], Row] = lambda q, p: p[-1],
) -> Counts:
    """Compute how often each output is expected in all runs.

    accept: the probability of accepting a token, of its p and q. redraw: the weights of the token that replaces it.
    last: the weights of the token after an accepted draft.
    """
    found: dict[tuple[int, ...], float] = defaultdict(float)
    left = float(RUNS)
    for i, token in enumerate(draft):
        p, q = model_probs[i], draft_probs[i]
        rejected = left * (1 - accept(p[token], q[token]))
        for other, share in _shares(redraw(p, q)):
            found[(*draft[:i], *other)] += rejected * share
        left -= rejected
    for other, share in _shares(last(draft_probs, model_probs)):
        found[(*draft, *other)] += left * share
    return {tokens: times for tokens, times in found.items() if times > 0}


def _shares(weights: Row) -> list[tuple[tuple[int, ...], float]]:
    """List each token with its share of the weights; where there are no weights, no token gets the whole share."""
    total = sum(weights)
    return [((token,), weight / total) for token, weight in enumerate(weights) if weight > 0] or [((), 1.0)]


CHANGES: dict[str, dict[str, Any]] = {
    "a rejected token is replaced by one from max(p - q, 0), not from p": {"redraw": lambda p, q: p},
    "p / q is upside down: a token that the draft model gives too often is rejected": {
        "accept": lambda p, q: min(1.0, q / p) if p else 1.0
    },
    "after a draft that is accepted as a whole, a token from model_probs[k] follows": {"last": lambda q, p: []},
    "the last token comes from model_probs[k], not from the draft model": {"last": lambda q, p: (q or p)[-1]},
    "where p is below q, the weight is 0: not the distance between them": {
        "redraw": lambda p, q: [abs(a - b) for a, b in zip(p, q, strict=True)]
    },
    "p - q, not q - p: tokens that the draft model gives too rarely make up for it": {
        "redraw": lambda p, q: residual(q, p)
    },
    "the draft model's q counts, too: accept with min(1, p / q), not with p": {"accept": lambda p, q: p},
    "every drafted token is accepted: some have to be rejected, with probability 1 - p / q": {
        "accept": lambda p, q: 1.0
    },
}


def explain_counts(got: Counts, want: Counts) -> str | None:
    """Name the outcome that comes too often or too rarely by most; None where chance explains the differences."""
    if impossible := [tokens for tokens in got if tokens not in want]:
        tokens, about = max(impossible, key=lambda tokens: got[tokens]), "never"
    elif is_chance(got, want):
        return None
    else:
        tokens = max(want, key=lambda tokens: (got.get(tokens, 0) - want[tokens]) ** 2 / want[tokens])
        about = f"about {want[tokens]:.0f} times"
    return f"in {RUNS} runs you return {list(tokens)} {got.get(tokens, 0):.0f} times, expected {about}"


def is_chance(got: Counts, want: Counts) -> bool:
    """Decide whether draws from the wanted distribution would differ as much with a probability above RARE.

    A bound for any number of draws (Agrawal, 2020, theorem I.2): for m outcomes, draws times their relative entropy
    exceed x > m - 1 with a probability of at most exp(-x) (e x / (m - 1)) ** (m - 1).
    """
    x = sum(times * log(times / want[tokens]) for tokens, times in got.items())
    free = len(want) - 1
    return x <= free or x - free * (1 + log(x / free)) <= -log(RARE)


def count_runs(answer: Callable[..., Any], draft: list[int], draft_probs: list[Row], model_probs: list[Row]) -> Counts:
    """Count how often an answer emits which tokens. Raises Wrong for anything but token ids."""
    return Counter(_run(answer, (draft, draft_probs, model_probs), RUNS))


def _run(answer: Callable[..., Any], case: Drafted, times: int) -> list[tuple[int, ...]]:
    """Collect the tokens of each run, all with one generator."""
    draft, *rows = case
    q, p = _read_only(*rows)
    handed, rng, found = list(draft), np.random.default_rng(0), []
    with np.errstate(all="ignore"):  # a right answer may compute 0 / 0 for a token that it never draws
        for _ in range(times):
            found.append(emitted(answer(handed, q, p, rng)))
            if handed != draft or plain([q, p]) != rows:
                raise Wrong("you have changed what you were called with, which is the caller's: make a copy")
    return found


def _read_only(draft_probs: list[Row], model_probs: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    p = np.array(model_probs)
    q = np.array(draft_probs).reshape(-1, p.shape[1])  # [0, V] where nothing is drafted
    for array in (q, p):
        array.setflags(write=False)
    return q, p


def emitted(got: Any) -> tuple[int, ...]:
    if got is None:
        raise Wrong("got None: is a `return` missing?")
    tokens = plain(got)
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise Wrong(f"expected a list of token ids, got {got!r}")
    return tuple(tokens)


def _draw_row(rng: Random, vocab_size: int) -> Row:
    """Draw probabilities in sixteenths. Small vocabularies and few parts give zeros and rows with one token, too."""
    times = Counter(rng.choices(range(vocab_size), [rng.choice((0, 1, 3)) + 0.01 for _ in range(vocab_size)], k=PARTS))
    return [times[token] / PARTS for token in range(vocab_size)]


def _draw_draft(rng: Random) -> Drafted:
    vocab_size, num_drafts = rng.randint(2, 4), rng.randint(0, 3)
    q = [_draw_row(rng, vocab_size) for _ in range(num_drafts)]
    draft = [rng.choices(range(vocab_size), row)[0] for row in q]
    return draft, q, [_draw_row(rng, vocab_size) for _ in range(num_drafts + 1)]


UNLIKE: Drafted = (
    [1, 0, 2],
    [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]],
    [[0.375, 0.25, 0.375], [0.25, 0.375, 0.375], [0.375, 0.375, 0.25], [0.125, 0.5, 0.375]],
)
CASES: list[Drafted] = [
    ([1], [[0.5, 0.5]], [[0.75, 0.25], [0.75, 0.25]]),
    ([0], [[0.5, 0.5]], [[0.5, 0.5], [1.0, 0.0]]),  # p and q are equal
    ([0], [[1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]]),  # the model never chooses it
    ([1], [[0.0, 1.0, 0.0]], [[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]),  # q of a draft that no model made
    ([0, 1], [[0.5, 0.5], [0.5, 0.5]], [[0.25, 0.75], [0.75, 0.25], [0.5, 0.5]]),  # both are accepted half of the time
    UNLIKE,
    ([0], [[1.0, 0.0, 0.0, 0.0]], [[0.0, 0.1875, 0.1875, 0.625], [0.25, 0.25, 0.25, 0.25]]),  # unequal rest
    *draw(_draw_draft),
]
MISTAKES = {why: partial(expected_counts, **change) for why, change in CHANGES.items()}
DISTRIBUTIONS = Comparison(
    CASES,
    Expected(expected_counts, MISTAKES, explain_counts),
    inputs("draft", "draft_probs", "model_probs"),
    count_runs,
)


def check_distribution(answer: Callable[..., Any]) -> None:
    """Raise Wrong for another distribution, and unless equal generators give equal tokens."""
    DISTRIBUTIONS(answer)
    if _run(answer, UNLIKE, 100) != _run(answer, UNLIKE, 100):
        raise Wrong(
            "the distribution is right, but two generators with one seed give different tokens: take every random "
            "number from rng"
        )
