"""Lesson 15, keys and what a prompt shares: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import accumulate, count, takewhile
from zlib import crc32

import numpy as np
from wrong_answers import right_answers, wrong_answers


def ends(text, size):
    return range(size, len(text) + 1, size)


def by_text(key):
    """key(text up to the end of the block, block_size)."""
    return lambda text, size: [key(text[:end], size) for end in ends(text, size)]


numbers = count()


def numbered(text, size):
    """The first block of every text is number 0."""
    seen = {}
    return [seen.setdefault(tuple(text[:end]), len(seen)) for end in ends(text, size)]


class Key:
    def __init__(self, text):
        self.text = list(text)

    def __eq__(self, other):
        return self.text == other.text

    def __hash__(self):
        return hash(tuple(self.text[-3:]))


test_wrong_keys = wrong_answers(
    "15.1",
    {
        "lists": (by_text(lambda t, n: list(t)), "unhashable type: 'list'"),
        "numbered": (by_text(lambda t, n: next(numbers)), "end the same text, and have two keys"),
        "one key": (lambda t, n: hash(tuple(t)), "expected a list of keys"),
        "one number, and the length": (
            by_text(lambda t, n: (len(t), sum(token * 50_257**i for i, token in enumerate(t)))),
            "different texts,",
        ),
        "a hash of 32 bits": (by_text(lambda t, n: crc32(array("q", t).tobytes())), "when a key has too few bits"),
        "the last 300": (by_text(lambda t, n: (len(t), *t[-300:])), "have the same key"),
        "a sum of what comes before": (by_text(lambda t, n: (len(t), sum(t[:-n]), *t[-n:])), "have the same key"),
        "numbered in each call": (numbered, "have the same key"),
    },
)


def chained_blake(text, size):
    def step(before, end):
        return blake2b(before + np.array(text[end - size : end], np.int64).tobytes()).digest()

    return list(accumulate(ends(text, size), step, initial=b""))[1:]


test_right_keys = right_answers(
    "15.1",
    {
        "another hash": chained_blake,
        "objects of its own": by_text(lambda t, n: Key(t)),
    },
)


# 15.2


def right_plan(n, found, size):
    cached = min(len(list(takewhile(bool, found))) * size, n - 1)
    return cached, cached // size, -(-n // size) - cached // size


test_wrong_plans = wrong_answers(
    "15.2",
    {
        "five blocks at most": (lambda n, f, s: right_plan(n, f[:5], s), "num_cached: you return 320, expected"),
    },
)


def in_a_loop(n, found, size):
    cached = shared = 0
    for is_there in found:
        if not is_there:
            break
        cached += size
    if cached == n:
        cached -= 1
    while (shared + 1) * size <= cached:
        shared += 1
    new, room = 0, shared * size
    while room < n:
        new, room = new + 1, room + size
    return [cached, shared, new]


test_right_plans = right_answers(
    "15.2",
    {
        "a loop, a list": in_a_loop,
        "an array": lambda *case: np.array(right_plan(*case)),
    },
)
