"""Lesson 06: wrong answers are told what is wrong; rows and builds are counted as the stages really make them."""

from __future__ import annotations

import itertools
import random

import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.lesson06.exercises import BLOCK_LISTS, KEYS, RowCache, wrong_pairs

test_wrong_rows_of_a_step = wrong_answers(
    "06.1",
    {
        "all blocks": (lambda L, lengths, size: L * sum(n // size for n in lengths), "you return 20, expected 10"),
        "a list": (lambda L, lengths, size: [L * (n % size == 0) for n in lengths], "expected a number, got list"),
    },
)
test_right_rows_of_a_step = right_answers(
    "06.1",
    {
        "blocks before and after": lambda L, lengths, size: L * sum(-(-(n + 1) // size) + -n // size for n in lengths),
        "a tensor": lambda L, lengths, size: (torch.tensor(lengths) % size == 0).sum() * L,
    },
)


# 06.2


def search(new_cache, block_lists=BLOCK_LISTS, pairs=None):
    for first, second in pairs or itertools.product(block_lists, repeat=2):
        cache = new_cache()
        cache.row(first)
        if cache.row(second) != second:
            return first, second
    return None


# No search: one pair for each key that the check once tried.
def at_random(new_cache):
    rng = random.Random(0)
    found = search(new_cache, pairs=[rng.choices(BLOCK_LISTS, k=2) for _ in range(1_500)])
    return found and list(found)


def in_tuples(new_cache):
    found = search(new_cache)
    return found and tuple(map(tuple, found))


test_right_searches = right_answers("06.2", {"at random": at_random, "tuples": in_tuples})


test_wrong_searches = wrong_answers(
    "06.2",
    {
        "never a pair": (
            lambda new_cache: None if new_cache() else None,
            "key = the length: you found no pair, but row([0]) and then row([1]) is one",
        ),
        "one pair for every key": (
            lambda new_cache: ([0], [1]),
            "key = the first id: after row([0]), row([1]) is [1], which is right",
        ),
        "an id twice": (
            lambda new_cache: ([0, 0], [1, 1]),
            "you return [0, 0], expected a list of 1 to 3 different ids",
        ),
        "an id out of range": (
            lambda new_cache: ([0], [7]),
            "you return [7], expected a list of 1 to 3 different ids from 0 to 4",
        ),
        "lists of three left out": (
            lambda new_cache: search(new_cache, [b for b in BLOCK_LISTS if len(b) < 3]),
            "key = the first two ids: you found no pair, but row([0, 1]) and then row([0, 1, 2]) is one",
        ),
        "ids from 0 to 3": (
            lambda new_cache: search(new_cache, [blocks for blocks in BLOCK_LISTS if 4 not in blocks]),
            "key = the ids modulo 4: you found no pair, but row([0]) and then row([4]) is one",
        ),
        "tuples compared with lists": (
            lambda new_cache: search(new_cache, [*map(tuple, BLOCK_LISTS)]),
            "row returns a list, and a tuple never equals a list",
        ),
        "a pair for a sound key": (lambda new_cache: search(new_cache) or ([0], [1]), "key = all ids: after row([0])"),
    },
)


def test_a_key_is_sound_exactly_when_no_search_finds_a_pair():
    for name, key in KEYS.items():
        assert (search(lambda key=key: RowCache(key)) is None) == (not wrong_pairs(key)), name
    sound = [name for name, key in KEYS.items() if not wrong_pairs(key)]
    assert "all ids" in sound and len(sound) == 4 and len(KEYS) == 61
