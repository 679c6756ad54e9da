"""Lesson 19: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from json import loads
from math import comb

import numpy as np
import pytest
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from course.teach.lesson19 import distribution_checks, exercises
from roseinfer.sequence import Sequence
from stages import Speculative

# 19.1, a draft from n-grams


ngram_draft = solution("19.1")


def as_text(token_ids, num_tokens, longest=4, shortest=2):
    """Ids as text, where 1 is found in 11."""
    text = " ".join(map(str, token_ids))
    for size in range(min(longest, len(token_ids)), shortest - 1, -1):
        last = " ".join(map(str, token_ids[-size:]))
        if (at := text.rfind(last, 0, len(text) - 1)) >= 0:
            return [int(word) for word in text[at + len(last) :].split()][:num_tokens]
    return []


def takes_apart(token_ids, num_tokens, longest=4, shortest=2):
    last = token_ids.pop()
    return ngram_draft([*token_ids, last], num_tokens, longest, shortest)


def last_bytes(token_ids, num_tokens, longest=4, shortest=2):
    """Looks ids up by their last byte."""
    text = bytes(token_id % 256 for token_id in token_ids)
    for size in range(min(longest, len(text)), shortest - 1, -1):
        if (at := text.rfind(text[-size:], 0, len(text) - 1)) >= 0:
            return token_ids[at + size :][:num_tokens]
    return []


def in_a_longer_window(token_ids, num_tokens, longest=4, shortest=2):
    return ngram_draft(token_ids[-256:], num_tokens, longest, shortest)


test_wrong_lookups = wrong_answers(
    "19.1",
    {
        "ids as text": (as_text, "you return [1, 1], expected []"),
        "takes the text apart": (takes_apart, "which is the caller's: make a copy"),
        "the last byte of an id": (
            last_bytes,
            "you return [0, 1], expected []",
        ),
        "256 tokens": (in_a_longer_window, "you return [], expected [5]"),
    },
)


def by_windows(token_ids, num_tokens, longest=4, shortest=2):
    text = np.array(token_ids)
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
        found = np.flatnonzero((windows == text[-size:]).all(axis=1))
        if len(found):
            return text[found[-1] + size :][:num_tokens]
    return text[:0]


test_right_lookups = right_answers("19.1", {"windows": by_windows, "a tuple": lambda *case: tuple(ngram_draft(*case))})


def test_the_stage_drafts_by_the_rule_of_the_exercise():
    texts = [(case[0], case[1]) for case in exercises.TEXTS]
    assert any(ngram_draft(*text) for text in texts)
    for text, num_tokens in texts:
        assert Speculative.draft(None, Sequence(text), num_tokens) == ngram_draft(text, num_tokens)


# 19.2, accepted by hand


def changes_draft(draft, chosen):
    tokens = []
    while draft and draft[0] == chosen[len(tokens)]:
        tokens.append(draft.pop(0))
    return [*tokens, chosen[len(tokens)]]


def from_the_end(draft, chosen):
    wrong = [i for i in range(len(draft)) if draft[i] != chosen[i]]
    return chosen[: (wrong[-1] if wrong else len(draft)) + 1]


def one_object(draft, chosen):
    same = accumulate((a is b for a, b in zip(draft, chosen, strict=False)), min)
    return chosen[: sum(same) + 1]


def by_last_byte(draft, chosen):
    same = accumulate((a % 256 == b % 256 for a, b in zip(draft, chosen, strict=False)), min)
    return chosen[: sum(same) + 1]


test_wrong_rows = wrong_answers(
    "19.2",
    {
        "takes the draft apart": (changes_draft, "which is the caller's: make a copy"),
        "the last wrong one": (from_the_end, "you return [44, 300, 300], expected [44, 300]"),
        "one object": (one_object, "draft=[300], chosen=[300, 5]: you return [300], expected [300, 5]"),
        "the last byte of an id": (by_last_byte, "draft=[44], chosen=[300, 44]: you return [300, 44], expected [300]"),
    },
)


def by_numpy(draft, chosen):
    same = np.array(draft, int) == np.array(chosen[:-1], int)
    return np.array(chosen)[: int(same.cumprod().sum()) + 1]


def recursive(draft, chosen):
    if not draft or draft[0] != chosen[0]:
        return [chosen[0]]
    return [draft[0], *recursive(draft[1:], chosen[1:])]


test_right_rows = right_answers("19.2", {"NumPy": by_numpy, "recursive": recursive})


# 19.3, rejection sampling


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


# 19.4, the best number of tokens


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
