"""19.3, rejection sampling: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from fractions import Fraction
from json import loads
from math import comb

import numpy as np
import pytest
from wrong_answers import right_answers, wrong_answers

from course.teach.lesson19 import distribution_checks


def drawn_from(rng, weights):
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def in_place(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        if rng.random() >= model_probs[i][token] / draft_probs[i][token]:
            model_probs[i] -= draft_probs[i]
            return [*draft[:i], drawn_from(rng, model_probs[i].clip(0))]
    return [*draft, drawn_from(rng, model_probs[-1])]


def not_normalised_sums(draft, draft_probs, model_probs, rng):
    """Draws by sums: what is missing to 1 falls to the last token."""
    for i, token in enumerate(draft):
        if rng.random() >= model_probs[i][token] / draft_probs[i][token]:
            sums = np.maximum(model_probs[i] - draft_probs[i], 0).cumsum()
            return [*draft[:i], min(int(np.searchsorted(sums, rng.random(), side="right")), len(sums) - 1)]
    return [*draft, drawn_from(rng, model_probs[-1])]


def own_generator(draft, draft_probs, model_probs, rng):
    return right_by_sums(draft, draft_probs, model_probs, np.random.default_rng())


def squared_rest(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        p, q = model_probs[i], draft_probs[i]
        if rng.random() >= p[token] / q[token]:
            rest = np.maximum(p - q, 0) ** 2
            return [*draft[:i], int(rng.choice(len(p), p=rest / rest.sum()))]
    return [*draft, int(rng.choice(model_probs.shape[1], p=model_probs[-1]))]


def appends_to_the_draft(draft, draft_probs, model_probs, rng):
    tokens = right_by_sums(draft, draft_probs, model_probs, rng)
    draft.append(tokens[-1])
    return tokens


test_wrong_distributions = wrong_answers(
    "19.3",
    {
        "in place": (in_place, "ValueError: output array is read-only"),
        "not normalised, by sums": (not_normalised_sums, "times, expected "),
        "a generator of its own": (own_generator, "take every random number from rng"),
        "squares of the rest": (squared_rest, "times, expected about"),
        "the caller's draft": (appends_to_the_draft, "you have changed what you were called with"),
    },
)


def right_by_sums(draft, draft_probs, model_probs, rng):
    """All random numbers first, and tokens by cumulative sums."""
    numbers = rng.random(len(draft) + 1)
    weights, kept = model_probs[-1], len(draft)
    for i, token in enumerate(draft):
        if numbers[i] * draft_probs[i, token] >= model_probs[i, token]:
            weights, kept = np.clip(model_probs[i] - draft_probs[i], 0, None), i
            break
    token = np.searchsorted(weights.cumsum() / weights.sum(), numbers[-1], side="right")
    return np.array([*draft[:kept], token], dtype=int)


def right_by_rejection(draft, draft_probs, model_probs, rng):
    """The token that replaces a rejected one is found by rejection, too."""
    for i, token in enumerate(draft):
        p, q = model_probs[i], draft_probs[i]
        if rng.uniform(0, q[token]) >= p[token]:
            while True:
                other = rng.choice(len(p), p=p)
                if rng.random() >= q[other] / p[other]:
                    return (*draft[:i], other)
    return (*draft, rng.choice(model_probs.shape[1], p=model_probs[-1]))


test_right_distributions = right_answers(
    "19.3", {"numbers first": right_by_sums, "rejection again": right_by_rejection}
)


@pytest.mark.parametrize("right", [0.5, 0.25, 1 / 16, 1.0])
def test_chance_alone_refuses_less_than_one_in_a_billion(right):
    """The exact probability of all counts of one outcome that are refused."""
    n, share = distribution_checks.RUNS, Fraction(right)
    most = distribution_checks.most_by_chance(n * right)
    refused = [i for i in range(n + 1) if abs(i - n * right) > most]
    assert sum(comb(n, i) * share**i * (1 - share) ** (n - i) for i in refused) <= distribution_checks.RARE
    assert 0 in refused or n in refused


def test_the_cases_of_rejection_sampling_are_exact():
    for draft, q, p in distribution_checks.CASES:
        assert all(sum(row) == 1 and all(x * 16 == int(x * 16) for x in row) for row in (*q, *p))
        assert len(q) == len(draft) == len(p) - 1 and all(row[token] > 0 for row, token in zip(q, draft, strict=True))
        times = distribution_checks.expected_counts(draft, q, p).values()
        assert sum(times) == pytest.approx(distribution_checks.RUNS)


def test_a_token_has_the_models_distribution_over_all_drafts():
    """The reference's first token, over all drafts of one token that the draft model may give."""
    q, p = [[0.25, 0.5, 0.25]], [[0.5, 0.375, 0.125], [0.25, 0.5, 0.25]]
    found = [0.0] * 3
    for token in range(3):
        for tokens, times in distribution_checks.expected_counts([token], q, p).items():
            found[loads(tokens)[0]] += q[0][token] * times / distribution_checks.RUNS
    assert found == pytest.approx(p[0])
