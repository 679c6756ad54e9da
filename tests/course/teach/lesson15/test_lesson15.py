"""Lesson 15, keys and what a prompt shares: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from array import array
from hashlib import blake2b, sha256
from itertools import accumulate, count, takewhile
from zlib import crc32

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers


def ends(text, size):
    return range(size, len(text) + 1, size)


def by_text(key):
    """key(text up to the end of the block, block_size)."""
    return lambda text, size: [key(text[:end], size) for end in ends(text, size)]


numbers = count()
known = {}


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
        "the rest, too": (
            lambda t, n: [tuple(t[: i + n]) for i in range(0, len(t), n)],
            "a block that is not full has no key",
        ),
        "lists": (by_text(lambda t, n: list(t)), "list has no hash"),
        "a list inside": (by_text(lambda t, n: (n, list(t))), "has no hash"),
        "numbered": (by_text(lambda t, n: next(numbers)), "returns different keys on a second call"),
        "one key": (lambda t, n: hash(tuple(t)), "expected a list of keys"),
        "too few": (lambda t, n: by_text(lambda t, n: tuple(t))(t, n)[1:], "keys, expected"),
        "one number, and the length": (
            by_text(lambda t, n: (len(t), sum(token * 50_257**i for i, token in enumerate(t)))),
            "different texts,",
        ),
        "a hash of 32 bits": (by_text(lambda t, n: crc32(array("q", t).tobytes())), "when a key has too few bits"),
        "the last 16": (by_text(lambda t, n: (len(t), *t[-16:])), "have the same key"),
        "numbered in each call": (numbered, "have the same key"),
        "characters": (by_text(lambda t, n: "".join(map(chr, t))), "chr() arg not in range"),
        "bytes that are too small": (by_text(lambda t, n: bytes(t)), "bytes must be in range(0, 256)"),
    },
)


def chained_blake(text, size):
    def step(before, end):
        return blake2b(before + np.array(text[end - size : end], np.int64).tobytes()).digest()

    return list(accumulate(ends(text, size), step, initial=b""))[1:]


test_right_keys = right_answers(
    "15.1",
    {
        "whole texts": by_text(lambda t, n: tuple(t)),
        "another hash": chained_blake,
        "numbers from a table": by_text(lambda t, n: known.setdefault(tuple(t), len(known))),
        "int32 bytes": by_text(lambda t, n: np.array(t, np.int32).tobytes()),
        "a set of places": by_text(lambda t, n: frozenset(enumerate(t))),
        "one number, with a 1 in front": by_text(lambda t, n: int("1" + "".join(f"{i:010}" for i in t))),
        "objects of its own": by_text(lambda t, n: Key(t)),
        "joined by a comma": by_text(lambda t, n: ",".join(map(str, t))),
        "sha256 of all of it": by_text(lambda t, n: sha256(array("q", t).tobytes()).hexdigest()),
        "nested pairs": lambda t, n: list(accumulate((tuple(t[e - n : e]) for e in ends(t, n)), lambda a, b: (a, b))),
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
        "two values": (lambda *case: right_plan(*case)[:2], "expected (num_cached, num_shared, num_new)"),
        "printed": (lambda *case: print(right_plan(*case)), "got None"),
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


def by_what_is_computed(n, found, size):
    cached, shared, _ = right_plan(n, found, size)
    return cached, shared, -(-(n - cached) // size)


test_right_plans = right_answers(
    "15.2",
    {
        "a loop, a list": in_a_loop,
        "blocks of what is computed": by_what_is_computed,
        "an array": lambda *case: np.array(right_plan(*case)),
        "tensors": lambda *case: tuple(map(torch.tensor, right_plan(*case))),
    },
)
