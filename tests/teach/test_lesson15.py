"""Lesson 15, keys and what a prompt shares: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from array import array
from hashlib import blake2b, sha256
from itertools import accumulate, count, takewhile
from zlib import crc32

import numpy as np
import torch
from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers


def ends(text, size):
    return range(size, len(text) + 1, size)


def by_text(key):
    """key(text up to the end of the block, block_size)."""
    return lambda text, size: [key(text[:end], size) for end in ends(text, size)]


def xor(text, size):
    mixed = 0
    for i in range(0, len(text), size):
        mixed ^= hash(tuple(text[i : i + size]))
    return mixed


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


@wrong_answers(
    "15.1",
    {
        "the block alone": (by_text(lambda t, n: tuple(t[-n:])), "its own tokens are not enough"),
        "place and block": (by_text(lambda t, n: (len(t), *t[-n:])), "do not say what comes before it"),
        "length and last": (by_text(lambda t, n: (len(t), t[-1])), "lesson 06's signature"),
        "a sum": (by_text(lambda t, n: (len(t), sum(t))), "a sum forgets the order"),
        "sorted": (by_text(lambda t, n: tuple(sorted(t))), "tokens lose their order"),
        "one block back": (by_text(lambda t, n: (len(t) > n, *t[-2 * n :])), "is not all of the text before"),
        "digits": (by_text(lambda t, n: "".join(map(str, t))), "1, 23 and 12, 3 become the same"),
        "a byte a token": (by_text(lambda t, n: bytes(i % 256 for i in t)), "more than a byte"),
        "exclusive or": (by_text(xor), "the order of the blocks is lost"),
        "what comes behind": (lambda t, n: [(i, *t) for i in range(len(t) // n)], "not depend on the text after it"),
        "not the first block": (by_text(lambda t, n: (len(t), *t[n:])), "the first block counts as well"),
        "the rest, too": (
            lambda t, n: [tuple(t[: i + n]) for i in range(0, len(t), n)],
            "a block that is not full has no key",
        ),
        "lists": (by_text(lambda t, n: list(t)), "list has no hash"),
        "a list inside": (by_text(lambda t, n: (n, list(t))), "has no hash"),
        "numbered": (by_text(lambda t, n: next(numbers)), "returns different keys on a second call"),
        "one key": (lambda t, n: hash(tuple(t)), "expected a list of keys"),
        "too few": (lambda t, n: by_text(lambda t, n: tuple(t))(t, n)[1:], "keys, expected"),
        "two bytes a token": (
            by_text(lambda t, n: np.array(t).astype(np.uint16).tobytes()),
            "a token id needs more than two bytes",
        ),
        "modulo 65,536": (by_text(lambda t, n: tuple(i % 65_536 for i in t)), "a token id needs more than two bytes"),
        "as many bytes as it needs": (
            by_text(lambda t, n: b"".join(i.to_bytes(max(1, (i.bit_length() + 7) // 8), "big") for i in t)),
            "257 and 1, 1 become the same",
        ),
        "hexadecimal": (by_text(lambda t, n: "".join(f"{i:x}" for i in t)), "hexadecimal digits side by side"),
        "four hexadecimal digits": (by_text(lambda t, n: "".join(f"{i:04x}" for i in t)), "have the same key"),
        "one number": (
            by_text(lambda t, n: sum(token * 2 ** (31 * i) for i, token in enumerate(reversed(t)))),
            "lose the zeros in front",
        ),
        "one number, and the length": (
            by_text(lambda t, n: (len(t), sum(token * 50_257**i for i, token in enumerate(t)))),
            "different texts,",
        ),
        "32-bit floats": (by_text(lambda t, n: tuple(np.array(t, np.float32).tolist())), "as a 32-bit float"),
        "sums of places": (
            by_text(lambda t, n: (len(t), t[0], sum(t), sum(i * token for i, token in enumerate(t)))),
            "the same sum of place * id",
        ),
        "a hash of 16 bits": (by_text(lambda t, n: hash(tuple(t)) % 2**16), "when a key has too few bits"),
        "a hash of 24 bits": (
            by_text(lambda t, n: sha256(array("q", t).tobytes()).digest()[:3]),
            "when a key has too few bits",
        ),
        "a hash of 32 bits": (by_text(lambda t, n: crc32(array("q", t).tobytes())), "when a key has too few bits"),
        "the last 16": (by_text(lambda t, n: (len(t), *t[-16:])), "have the same key"),
        "numbered in each call": (numbered, "have the same key"),
        "characters": (by_text(lambda t, n: "".join(map(chr, t))), "chr() arg not in range"),
        "bytes that are too small": (by_text(lambda t, n: bytes(t)), "bytes must be in range(0, 256)"),
    },
)
def test_wrong_keys(answer, message):
    assert_refused("15.1", answer, message)


def chained_blake(text, size):
    def step(before, end):
        return blake2b(before + np.array(text[end - size : end], np.int64).tobytes()).digest()

    return list(accumulate(ends(text, size), step, initial=b""))[1:]


@right_answers(
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
def test_right_keys(answer):
    assert_accepted("15.1", answer)


# 15.2


def leading(found):
    return len(list(takewhile(bool, found)))


def right_plan(n, found, size):
    cached = min(leading(found) * size, n - 1)
    return cached, cached // size, -(-n // size) - cached // size


def plan_with(**instead):
    """Right, but for these values."""

    def plan(*case):
        values = dict(zip(("cached", "shared", "new"), right_plan(*case), strict=True))
        return tuple((values | {name: value(*case) for name, value in instead.items()}).values())

    return plan


@wrong_answers(
    "15.2",
    {
        "beyond a gap": (
            plan_with(cached=lambda n, f, s: min(sum(f) * s, n - 1)),
            "a block behind one that is missing cannot be used",
        ),
        "all of it": (plan_with(cached=lambda n, f, s: leading(f) * s), "at least one token has to be computed"),
        "a block computed again": (
            plan_with(cached=lambda n, f, s: min(leading(f), (n - 1) // s) * s),
            "a single token is computed, not all of the block",
        ),
        "always all but one": (plan_with(cached=lambda n, f, s: n - 1), "only what was found is cached"),
        "what is left": (
            plan_with(cached=lambda n, f, s: n - right_plan(n, f, s)[0]),
            "those are the tokens to compute",
        ),
        "blocks for tokens": (plan_with(cached=lambda n, f, s: leading(f)), "those are blocks, not tokens"),
        "one less everywhere": (
            plan_with(cached=lambda n, f, s: max(0, leading(f) * s - 1)),
            "one token less is found only where all of the prompt is",
        ),
        "shares what it writes": (
            plan_with(shared=lambda n, f, s: leading(f)),
            "the block that the last token is written to must not be shared",
        ),
        "shares beyond a gap": (
            plan_with(shared=lambda n, f, s: min(sum(f), (n - 1) // s)),
            "a block behind one that is missing cannot be used",
        ),
        "shares what is not there": (plan_with(shared=lambda n, f, s: (n - 1) // s), "only blocks that are found"),
        "never the last": (
            plan_with(shared=lambda n, f, s: max(0, leading(f) - 1)),
            "the last block found can be shared as long as nothing is written to it",
        ),
        "no block for the copy": (
            plan_with(new=lambda n, f, s: -(-n // s) - leading(f)),
            "the copy needs a block, too",
        ),
        "one for the answer": (
            plan_with(new=lambda n, f, s: n // s + 1 - right_plan(n, f, s)[1]),
            "the answer takes another one when it needs it",
        ),
        "full blocks alone": (
            plan_with(new=lambda n, f, s: n // s - right_plan(n, f, s)[1]),
            "the last block is needed also when it is not full",
        ),
        "all blocks anew": (plan_with(new=lambda n, f, s: -(-n // s)), "shared blocks are not taken anew"),
        "five blocks at most": (lambda n, f, s: right_plan(n, f[:5], s), "num_cached: you return 320, expected"),
        "two values": (lambda *case: right_plan(*case)[:2], "expected (num_cached, num_shared, num_new)"),
        "printed": (lambda *case: print(right_plan(*case)), "got None"),
    },
)
def test_wrong_plans(answer, message):
    assert_refused("15.2", answer, message)


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


@right_answers(
    "15.2",
    {
        "a loop, a list": in_a_loop,
        "blocks of what is computed": plan_with(new=lambda n, f, s: -(-(n - right_plan(n, f, s)[0]) // s)),
        "an array": lambda *case: np.array(right_plan(*case)),
        "tensors": lambda *case: tuple(map(torch.tensor, right_plan(*case))),
    },
)
def test_right_plans(answer):
    assert_accepted("15.2", answer)
