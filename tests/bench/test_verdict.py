"""A verdict says what was seen: every run faster, every run slower, or ranges that overlap."""

import itertools
import random

import pytest

from roseinfer.bench.verdict import chance, difference, explanation, verdict

BEFORE = [90.0, 100.0, 95.0]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([100.1, 107.0, 140.0], "faster in 3 of 3 runs"),
        ([100.0, 107.0, 140.0], "ranges overlap"),  # a tie is no win
        ([89.9, 75.5], "slower in 2 of 2 runs"),
        ([95.0, 120.0], "ranges overlap"),
        ([92.0, 93.0], "ranges overlap"),
        ([500.0], "one run"),
    ],
)
def test_a_verdict_names_how_many_runs_beat_every_run_of_the_other(after, said):
    assert verdict(BEFORE, after) == said
    assert difference(BEFORE, after) == -difference(after, BEFORE)


@pytest.mark.parametrize(("num_before", "num_after"), [(2, 2), (3, 3), (3, 2), (4, 4)])
def test_its_chance_is_the_share_of_all_orders_that_keep_the_runs_apart(num_before, num_after):
    ranks = range(num_before + num_after)
    splits = [([r for r in ranks if r not in after], after) for after in itertools.combinations(ranks, num_after)]
    assert chance(num_before, num_after) == pytest.approx(
        sum(difference(before, after) != 0 for before, after in splits) / len(splits)
    )


def test_the_same_code_measured_twice_differs_as_often_as_the_table_says():
    noise = random.Random(0)
    pairs = [[[noise.lognormvariate(5, 0.3) for _ in range(3)] for _ in range(2)] for _ in range(10_000)]
    assert sum(difference(*pair) != 0 for pair in pairs) == pytest.approx(1000, abs=100)
    assert explanation(3).endswith("1 time in 10.") and explanation(2).endswith("1 time in 3.")
    assert explanation(1) == "One run each: no verdict."
