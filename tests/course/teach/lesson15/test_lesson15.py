"""Lesson 15, keys and what a prompt shares: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from array import array
from functools import partial
from hashlib import blake2b
from itertools import accumulate, count, takewhile
from zlib import crc32

import numpy as np
import pytest
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import TokenBudget


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


test_right_plans = right_answers(
    "15.2",
    {
        "a list": lambda *case: list(right_plan(*case)),
        "an array": lambda *case: np.array(right_plan(*case)),
    },
)


# 15.5

piece_with = partial(solution, "15.5")
NOTED = "            self.copies[self.tables.of(seq.seq_id, 0)[num_full]] = source\n"

test_wrong_caches = wrong_answers(
    "15.5",
    {
        "another name": (piece_with({"def find(": "def look("}), "write find too"),
        "no cache": (TokenBudget, "expected a subclass of PrefixCache, got a subclass of Graphs"),
        "idle blocks are free": (
            piece_with({" + sum(block in self.tables.idle for block in shared)": ""}),
            "OutOfBlocks",
        ),
        "no copy": (piece_with({NOTED: "            pass\n"}), "is broken"),
        "the last block shared": (piece_with({"shared = blocks[:num_full]": "shared = blocks"}), "is broken"),
        "all of it found": (piece_with({"self.block_size, len(seq) - 1)": "self.block_size, len(seq))"}), "is broken"),
        "one block for all keys": (piece_with({"put(key, block)": "put(key, blocks[0])"}), "is broken"),
        "last block first": (piece_with({"blocks.append(": "blocks.insert(0, "}), "is broken"),
    },
)
OWN = "self.tables.of(seq.seq_id, 0)[num_full]"
# At night: the notebook's solution is judged in every run.
test_right_caches = pytest.mark.nightly(
    right_answers(
        "15.5",
        {
            "keys from the end": piece_with(
                {"in zip(": "in sorted(zip(", "strict=False)": "strict=False), key=lambda pair: -pair[1])"}
            ),
            "noted by update": piece_with({NOTED: f"            self.copies.update({{{OWN}: source}})\n"}),
        },
    )
)
