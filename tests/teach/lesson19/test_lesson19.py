"""Lesson 19: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate
from math import comb

import numpy as np
import pytest
from wrong_answers import right_answers, wrong_answers

from roseinfer.sequence import Sequence
from roseinfer.teach.lesson19 import distribution_checks, exercises
from stages import Speculative

# 19.1


def as_text(token_ids, num_tokens, longest=4, shortest=2):
    """Ids as text, where 1 is found in 11."""
    text = " ".join(map(str, token_ids))
    for size in range(min(longest, len(token_ids)), shortest - 1, -1):
        last = " ".join(map(str, token_ids[-size:]))
        if (at := text.rfind(last, 0, len(text) - 1)) >= 0:
            return [int(word) for word in text[at + len(last) :].split()][:num_tokens]
    return []


def place_only(token_ids, num_tokens, longest=4, shortest=2):
    for size in range(longest, shortest - 1, -1):
        for start in range(len(token_ids) - size - 1, -1, -1):
            if token_ids[start : start + size] == token_ids[-size:]:
                return start
    return []


def none_for_nothing(token_ids, num_tokens, longest=4, shortest=2):
    return exercises.ngram_draft(token_ids, num_tokens, longest, shortest) or None


def takes_apart(token_ids, num_tokens, longest=4, shortest=2):
    last = token_ids.pop()
    return exercises.ngram_draft([*token_ids, last], num_tokens, longest, shortest)


def one_more(token_ids, num_tokens, longest=4, shortest=2):
    return exercises.ngram_draft(token_ids, num_tokens + 1, longest, shortest)


def by_one_token(token_ids, num_tokens, longest=4, shortest=2):
    """Looks the last token up alone."""
    return exercises.ngram_draft(token_ids, num_tokens, 1, 1)


def without_smaller_ones(token_ids, num_tokens):
    return exercises.ngram_draft(token_ids, num_tokens)


def long_enough(token_ids, num_tokens, longest=4, shortest=2):
    """Gives up on texts that are shorter than the longest lookup."""
    if len(token_ids) <= longest:
        return []
    return exercises.ngram_draft(token_ids, num_tokens, longest, shortest)


def last_bytes(token_ids, num_tokens, longest=4, shortest=2):
    """Looks ids up by their last byte."""
    text = bytes(token_id % 256 for token_id in token_ids)
    for size in range(min(longest, len(text)), shortest - 1, -1):
        if (at := text.rfind(text[-size:], 0, len(text) - 1)) >= 0:
            return token_ids[at + size :][:num_tokens]
    return []


def in_a_window(token_ids, num_tokens, longest=4, shortest=2):
    """Looks no further back than 32 tokens."""
    return exercises.ngram_draft(token_ids[-32:], num_tokens, longest, shortest)


test_wrong_lookups = wrong_answers(
    "19.1",
    {
        "ids as text": (as_text, "you return [1], expected []"),
        "where it begins": (place_only, "you return 0, expected []"),
        "None for no draft": (none_for_nothing, "got None: is a `return` missing?"),
        "takes the text apart": (takes_apart, "token_ids was handed in, and you have changed it"),
        "one token more": (one_more, "num_tokens=0, longest=3, shortest=2: you return [0], expected []"),
        "the last token alone": (by_one_token, "token_ids=[3, 3], num_tokens=2: you return [3], expected []"),
        "no sizes": (without_smaller_ones, "takes 2 positional arguments but 4 were given"),
        "long texts alone": (long_enough, "you return [], expected [1]"),
        "the last byte of an id": (last_bytes, "token_ids=[1, 2, 257, 258], num_tokens=2: you return [257, 258]"),
        "32 tokens": (in_a_window, "you return [], expected [5]"),
    },
)


def by_index(token_ids, num_tokens, longest=4, shortest=2):
    """A dict of all n-grams, the last place of each."""
    for size in reversed(range(shortest, longest + 1)):
        places = {tuple(token_ids[i : i + size]): i + size for i in range(len(token_ids) - size)}
        if (after := places.get(tuple(token_ids[-size:]))) is not None:
            return tuple(token_ids[after:][:num_tokens])
    return ()


def by_windows(token_ids, num_tokens, longest=4, shortest=2):
    text = np.array(token_ids)
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
        found = np.flatnonzero((windows == text[-size:]).all(axis=1))
        if len(found):
            return text[found[-1] + size :][:num_tokens]
    return text[:0]


def longest_common_ending(token_ids, num_tokens, longest=4, shortest=2):
    """Each place by how many of the last tokens end there; of equals, the last place."""
    best = (0, 0)
    for end in range(1, len(token_ids)):
        size = 0
        while size < min(end, longest) and token_ids[end - 1 - size] == token_ids[-1 - size]:
            size += 1
        best = max(best, (size, end))
    size, end = best
    return [token_ids[i] for i in range(end, min(end + num_tokens, len(token_ids)))] if size >= shortest else []


test_right_lookups = right_answers(
    "19.1", {"a dict": by_index, "windows": by_windows, "the longest common ending": longest_common_ending}
)


def test_the_stage_drafts_by_the_rule_of_the_exercise():
    texts = [(case[0], case[1]) for case in exercises.TEXTS]
    assert any(exercises.ngram_draft(*text) for text in texts)
    for text, num_tokens in texts:
        assert Speculative.draft(None, Sequence(text), num_tokens) == exercises.ngram_draft(text, num_tokens)


# 19.2


def only_the_draft(draft, chosen):
    return draft


def changes_draft(draft, chosen):
    tokens = []
    while draft and draft[0] == chosen[len(tokens)]:
        tokens.append(draft.pop(0))
    return [*tokens, chosen[len(tokens)]]


def needs_a_draft(draft, chosen):
    tokens = []
    for i in range(len(draft)):  # noqa: B007
        if draft[i] != chosen[i]:
            break
        tokens.append(draft[i])
    return [*tokens, chosen[i]]


def in_any_row(draft, chosen):
    """A drafted token counts if the model chose it anywhere."""
    tokens = [token for token in draft if token in chosen]
    return [*tokens, chosen[len(tokens)]]


def from_the_end(draft, chosen):
    wrong = [i for i in range(len(draft)) if draft[i] != chosen[i]]
    return chosen[: (wrong[-1] if wrong else len(draft)) + 1]


def after_the_next(draft, chosen):
    right = exercises.num_accepted(draft, chosen)
    return chosen[: right + 2]


def unchecked_first(draft, chosen):
    return chosen[:1] + exercises.accept(draft[1:], chosen[1:]) if draft else chosen


def one_object(draft, chosen):
    same = accumulate((a is b for a, b in zip(draft, chosen, strict=False)), min)
    return chosen[: sum(same) + 1]


def by_last_byte(draft, chosen):
    same = accumulate((a % 256 == b % 256 for a, b in zip(draft, chosen, strict=False)), min)
    return chosen[: sum(same) + 1]


def printed(draft, chosen):
    print(exercises.accept(draft, chosen))


test_wrong_rows = wrong_answers(
    "19.2",
    {
        "only the draft": (only_the_draft, "draft=[], chosen=[4]: you return [], expected [4]"),
        "takes the draft apart": (changes_draft, "draft was handed in, and you have changed it"),
        "no row for an empty draft": (needs_a_draft, "UnboundLocalError"),
        "in any row": (in_any_row, "you return [3, 3], expected [4]"),
        "the last wrong one": (from_the_end, "you return [4, 3, 4, 3], expected [4, 3]"),
        "one row too many": (after_the_next, "you return [4, 3], expected [4]"),
        "the first is not compared": (unchecked_first, "expected [4]"),
        "one object": (one_object, "draft=[300], chosen=[300, 5]: you return [300], expected [300, 5]"),
        "the last byte of an id": (by_last_byte, "draft=[44], chosen=[300, 5]: you return [300, 5], expected [300]"),
        "printed": (printed, "got None: is a `return` missing?"),
    },
)


def by_accumulate(draft, chosen):
    same = accumulate((a == b for a, b in zip(draft, chosen, strict=False)), min)
    return tuple(chosen[: sum(same) + 1])


def by_numpy(draft, chosen):
    same = np.array(draft, int) == np.array(chosen[:-1], int)
    return np.array(chosen)[: int(same.cumprod().sum()) + 1]


def recursive(draft, chosen):
    if not draft or draft[0] != chosen[0]:
        return [chosen[0]]
    return [draft[0], *recursive(draft[1:], chosen[1:])]


test_right_rows = right_answers("19.2", {"accumulate": by_accumulate, "NumPy": by_numpy, "recursive": recursive})

# 19.3


def drawn_from(rng, weights):
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def in_place(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        if rng.random() >= model_probs[i][token] / draft_probs[i][token]:
            model_probs[i] -= draft_probs[i]
            return [*draft[:i], drawn_from(rng, model_probs[i].clip(0))]
    return [*draft, drawn_from(rng, model_probs[-1])]


def not_normalised(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        if rng.random() >= model_probs[i][token] / draft_probs[i][token]:
            return [*draft[:i], rng.choice(len(model_probs[i]), p=np.maximum(model_probs[i] - draft_probs[i], 0))]
    return [*draft, drawn_from(rng, model_probs[-1])]


def not_normalised_sums(draft, draft_probs, model_probs, rng):
    """The same by sums: what is missing to 1 falls to the last token."""
    for i, token in enumerate(draft):
        if rng.random() >= model_probs[i][token] / draft_probs[i][token]:
            sums = np.maximum(model_probs[i] - draft_probs[i], 0).cumsum()
            return [*draft[:i], min(int(np.searchsorted(sums, rng.random(), side="right")), len(sums) - 1)]
    return [*draft, drawn_from(rng, model_probs[-1])]


def likeliest(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        if token != model_probs[i].argmax():
            return [*draft[:i], int(model_probs[i].argmax())]
    return [*draft, int(model_probs[-1].argmax())]


def own_generator(draft, draft_probs, model_probs, rng):
    return right_by_sums(draft, draft_probs, model_probs, np.random.default_rng())


def replaced_by_another_generator(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        p, q = model_probs[i], draft_probs[i]
        if rng.random() >= p[token] / q[token]:
            rest = np.maximum(p - q, 0)
            return [*draft[:i], int(np.random.default_rng().choice(len(p), p=rest / rest.sum()))]
    return [*draft, int(rng.choice(model_probs.shape[1], p=model_probs[-1]))]


def squared_rest(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        p, q = model_probs[i], draft_probs[i]
        if rng.random() >= p[token] / q[token]:
            rest = np.maximum(p - q, 0) ** 2
            return [*draft[:i], int(rng.choice(len(p), p=rest / rest.sum()))]
    return [*draft, int(rng.choice(model_probs.shape[1], p=model_probs[-1]))]


def seeded(draft, draft_probs, model_probs, rng):
    return right_by_sums(draft, draft_probs, model_probs, np.random.default_rng(0))


def likeliest_of_the_rest(draft, draft_probs, model_probs, rng):
    for i, token in enumerate(draft):
        if rng.random() >= model_probs[i][token] / draft_probs[i][token]:
            return [*draft[:i], int((model_probs[i] - draft_probs[i]).argmax())]
    return [*draft, drawn_from(rng, model_probs[-1])]


def one_number(draft, draft_probs, model_probs, rng):
    """One number decides on the draft; another one draws."""
    number = rng.random()
    for i, token in enumerate(draft):
        if number >= model_probs[i][token] / draft_probs[i][token]:
            return [*draft[:i], drawn_from(rng, np.maximum(model_probs[i] - draft_probs[i], 0))]
    return [*draft, drawn_from(rng, model_probs[-1])]


def stops_at_a_match(draft, draft_probs, model_probs, rng):
    """Draws from the model, and compares: right, but for how many are accepted."""
    for i, token in enumerate(draft):
        if (own := drawn_from(rng, model_probs[i])) != token:
            return [*draft[:i], own]
    return [*draft, drawn_from(rng, model_probs[-1])]


def a_set(draft, draft_probs, model_probs, rng):
    return {*draft, 0}


def probability_zero(draft, draft_probs, model_probs, rng):
    """Draws from all tokens alike, those of probability 0 among them."""
    return [int(rng.integers(model_probs.shape[1]))]


test_wrong_distributions = wrong_answers(
    "19.3",
    {
        "in place": (in_place, "ValueError: output array is read-only"),
        "not normalised": (not_normalised, "robabilities do not sum to 1"),
        "not normalised, by sums": (not_normalised_sums, "times, expected "),
        "the likeliest": (likeliest, "draft=[], draft_probs=[], model_probs=[[0.25, 0.75]]: in 300 runs you return"),
        "a generator of its own": (own_generator, "take every random number from rng"),
        "another generator for the rest": (replaced_by_another_generator, "take every random number from rng"),
        "squares of the rest": (squared_rest, "times, expected about"),
        "a seed of its own": (seeded, "times, expected about"),
        "the likeliest of the rest": (likeliest_of_the_rest, "times, expected about"),
        "one number for all": (one_number, "each drafted token needs a random number of its own"),
        "drawn and compared": (stops_at_a_match, "too few drafts are accepted"),
        "a set": (a_set, "expected a list of token ids, got {0}"),
        "all tokens alike": (probability_zero, "in 300 runs you return [0]"),
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


def right_from_the_end(draft, draft_probs, model_probs, rng):
    """Each row draws its token before any is compared; all ratios at once, with 0 / 0 where nothing is rejected."""
    k = len(draft)
    rest = np.maximum(model_probs[:k] - draft_probs, 0)
    rows = [*(rest / rest.sum(axis=1, keepdims=True)), model_probs[k]]
    own = [rng.multinomial(1, row).argmax() if np.isfinite(row).all() else -1 for row in rows]
    accepted = rng.random(k) < model_probs[np.arange(k), draft] / draft_probs[np.arange(k), draft]
    kept = int(accepted.cumprod().sum())
    return draft[:kept] + [own[kept]]


def right_by_race(draft, draft_probs, model_probs, rng):
    """Tokens by an exponential race; accepted by a logarithm."""
    for i, token in enumerate(draft):
        if -rng.exponential() >= np.log(model_probs[i, token]) - np.log(draft_probs[i, token]):
            rest = np.maximum(model_probs[i] - draft_probs[i], 0)
            return [*draft[:i], int((rest / rng.exponential(size=len(rest))).argmax())]
    return [*draft, int((model_probs[-1] / rng.exponential(size=model_probs.shape[1])).argmax())]


RIGHT_DISTRIBUTIONS = {
    "numbers first": right_by_sums, "rejection again": right_by_rejection, "from the end": right_from_the_end,
    "a race": right_by_race,
}  # fmt: skip
test_right_distributions = right_answers("19.3", RIGHT_DISTRIBUTIONS)


@pytest.mark.parametrize("right", [0.5, 0.25, 1 / 16])
def test_chance_alone_refuses_less_than_one_in_a_billion(right):
    """Two outcomes: the exact probability of all counts that are refused."""
    n = distribution_checks.RUNS
    want = {(0,): n * right, (1,): n * (1 - right)}
    refused = [i for i in range(n + 1) if not distribution_checks.is_chance(+Counter({(0,): i, (1,): n - i}), want)]
    share = Fraction(right)
    chance = sum(comb(n, i) * share**i * (1 - share) ** (n - i) for i in refused)
    assert 0 < chance <= distribution_checks.RARE
    assert n in refused


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
            found[tokens[0]] += q[0][token] * times / distribution_checks.RUNS
    assert found == pytest.approx(p[0])


# 19.4


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


def accepted_drafts_only(seconds, acceptance):
    rates = [sum(acceptance**i for i in range(1, k + 1)) / time for k, time in enumerate(seconds)]
    return rates.index(max(rates))


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
        "sorts the times": (sorts_in_place, "seconds was handed in, and you have changed it"),
        "least time per token": (least_time_per_draft, "you return 1, expected 0"),
        "accepted drafts only": (accepted_drafts_only, "a step gives the model's own token, too"),
        "without the last": (stops_too_early, "seconds=[1.01, 1.03], acceptance=0.1: you return 0, expected 1"),
        "never certain": (capped, "seconds=[1.0, 1.96], acceptance=1.0: you return 0, expected 1"),
        "added tokens for added time": (added_time, "seconds=[1.0, 1.52], acceptance=0.1: you return 1, expected 0"),
        "two numbers": (a_list, "expected a number, got list"),
    },
)


def by_closed_form(seconds, acceptance):
    def expected(k):
        return k + 1 if acceptance == 1 else (1 - acceptance ** (k + 1)) / (1 - acceptance)

    return max(range(len(seconds)), key=lambda k: expected(k) / seconds[k])


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


test_right_numbers = right_answers(
    "19.4", {"the closed form": by_closed_form, "arrays": by_arrays, "time per token": by_time_per_token}
)


def test_equally_fast_steps_are_so_in_floats_too():
    tied = [case for case in exercises.TIMES if not exercises.is_clear(*case)]
    assert tied
    for seconds, acceptance in tied:
        rates = [sum(acceptance**i for i in range(k + 1)) / time for k, time in enumerate(seconds)]
        assert rates == [float(rate) for rate in exercises.speeds(seconds, acceptance)]
