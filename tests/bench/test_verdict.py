"""A difference is claimed only where runs show it, and never between runs of the same thing as a rule."""

import random

import pytest

from roseinfer.bench.verdict import difference

BEFORE = [90.0, 100.0, 95.0]  # 10 wide


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ([105.1, 107.0], 1),
        ([105.0, 107.0], 0),  # 5 apart, and BEFORE is 10 wide
        ([101.0, 140.0], 0),  # beyond, but wider itself than twice as far
        ([84.0, 75.5], -1),
        ([85.0, 75.5], 0),
        ([95.0, 120.0], 0),
        ([500.0], 0),
    ],
)
def test_ranges_have_to_lie_further_apart_than_half_the_wider_one(after, shown):
    assert difference(BEFORE, after) == shown
    assert difference(after, BEFORE) == -shown


def test_the_same_thing_run_twice_seldom_differs():
    noise = random.Random(0)
    pairs = [[[noise.gauss(100, 1) for _ in range(3)] for _ in range(2)] for _ in range(10_000)]
    assert sum(difference(*pair) != 0 for pair in pairs) < 300
    assert sum(difference(one, [10 + x for x in other]) == 1 for one, other in pairs) > 9_900  # ten times the noise
