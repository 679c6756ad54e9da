"""Checkers of lesson 15: keys of blocks, what a prompt shares, eviction with ref counts, a policy of your own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.exercise import register
from .cache_checks import require_policy
from .key_checks import KEYS, require_keys

# 15.1

register("15.1", require_keys, KEYS)

# 15.2


def _leading(found: list[bool]) -> int:
    return next((i for i, is_there in enumerate(found) if not is_there), len(found))


def num_cached(prompt_len: int, found: list[bool], block_size: int) -> int:
    return min(_leading(found) * block_size, prompt_len - 1)


def num_shared(prompt_len: int, found: list[bool], block_size: int) -> int:
    return num_cached(prompt_len, found, block_size) // block_size


def num_new(prompt_len: int, found: list[bool], block_size: int) -> int:
    return -(-prompt_len // block_size) - num_shared(prompt_len, found, block_size)


CACHED_MISTAKES = {
    "a block after one that is missing cannot be used: K and V before it are missing": lambda n, found, size: min(
        sum(found) * size, n - 1
    ),
    "at least one token has to be computed: the next token is chosen from its logits": lambda n, found, size: (
        _leading(found) * size
    ),
    "with a copy of the last block a single token is computed, not all of the block": lambda n, found, size: (
        min(_leading(found), (n - 1) // size) * size
    ),
    "only what was found is cached": lambda n, found, size: n - 1,
    "those are the tokens to compute, not the ones that are cached": lambda n, found, size: (
        n - num_cached(n, found, size)
    ),
    "those are blocks, not tokens": lambda n, found, size: _leading(found),
    "one token less is found only where all of the prompt is": lambda n, found, size: max(
        0, _leading(found) * size - 1
    ),
}
SHARED_MISTAKES = {
    "the block that the last token is written to must not be shared": lambda n, found, size: _leading(found),
    "a block after one that is missing cannot be used": lambda n, found, size: min(sum(found), (n - 1) // size),
    "a block with a part of the cached tokens is copied, not shared": lambda n, found, size: (
        -(-num_cached(n, found, size) // size)
    ),
    "only blocks that are found can be shared": lambda n, found, size: (n - 1) // size,
    "the last block found can be shared as long as nothing is written to it": lambda n, found, size: max(
        0, _leading(found) - 1
    ),
}
NEW_MISTAKES = {
    "the copy needs a block, too": lambda n, found, size: -(-n // size) - _leading(found),
    "the prompt's blocks alone: the answer takes another one when it needs it": lambda n, found, size: (
        n // size + 1 - num_shared(n, found, size)
    ),
    "the last block is needed also when it is not full": lambda n, found, size: n // size - num_shared(n, found, size),
    "shared blocks are not taken again": lambda n, found, size: -(-n // size),
}


def _draw_prompt(rng: Random) -> tuple[int, list[bool], int]:
    size, blocks = rng.choice(((1, 5), (2, 5), (3, 5), (4, 5), (5, 5), (64, 40)))
    blocks = rng.randint(0, blocks)
    n = max(1, blocks * size + rng.choice((0, 0, rng.randrange(size))))
    return n, [rng.random() < rng.choice((0.5, 0.9, 1.0)) for _ in range(n // size)], size


PROMPTS = [
    (1, [], 4),
    (4, [False], 4),
    (4, [True], 4),
    (5, [True], 4),
    (8, [True, True], 4),
    (8, [False, True], 4),
    (9, [True, False], 4),
    (12, [True, False, True], 4),
    (1, [True], 1),
    (2, [True, True], 1),
    *draw(_draw_prompt),
]

PLAN = {
    "num_cached": Expected(num_cached, CACHED_MISTAKES),
    "num_shared": Expected(num_shared, SHARED_MISTAKES),
    "num_new": Expected(num_new, NEW_MISTAKES),
}
register("15.2", Comparison(PROMPTS, PLAN, inputs("prompt_len", "found", "block_size")))

# 15.3

Event = tuple[str, int]
JOIN, LEAVE = "hold", "drop"


class Pool:
    """A pool of texts, each in a block, as exercise 15.3 has it. A mistake overrides a method."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs: dict[int, int] = {}  # of the texts that are there, in the order in which they came
        self.idle: list[int] = []  # the longest idle first
        self.hits = 0
        self.evicted: list[int] = []

    def play(self, events: list[Event]) -> Pool:
        for what, text in events:
            (self.hold if what == JOIN else self.drop)(text)
        return self

    def hold(self, text: int) -> None:
        self.hits += self.is_hit(text)
        if text in self.refs:
            self.is_held_again(text)
        elif self.is_full():
            self.evicted.append(victim := self.victim())
            del self.refs[victim]
            self.idle = [other for other in self.idle if other != victim]
        self.refs[text] = self.refs.get(text, 0) + 1

    def drop(self, text: int) -> None:
        if text in self.refs:  # by some mistakes it is not
            self.refs[text] -= 1
            if self.refs[text] <= 0 and text not in self.idle:
                self.idle.append(text)

    def is_hit(self, text: int) -> bool:
        return text in self.refs

    def is_held_again(self, text: int) -> None:
        self.idle = [other for other in self.idle if other != text]

    def is_full(self) -> bool:
        return len(self.refs) == self.num_blocks

    def victim(self) -> int:
        return self.idle[0]


def _drops_all(pool: Pool, text: int) -> None:
    pool.refs[text] = 1
    Pool.drop(pool, text)


def _holds_and_moves(pool: Pool, text: int) -> None:
    Pool.hold(pool, text)
    pool.refs[text] = pool.refs.pop(text)


def _first_idle(pool: Pool) -> int:
    return next(text for text in pool.refs if text in pool.idle)


# Why it is wrong -> the methods of Pool that make the mistake.
Mistakes = dict[str, dict[str, Callable[..., Any]]]
HIT_MISTAKES: Mistakes = {
    "a text that others hold is a hit, too": {"is_hit": lambda pool, text: text in pool.idle},
    "an idle text is a hit: freeing a block does not empty it": {
        "is_hit": lambda pool, text: text in pool.refs and text not in pool.idle
    },
}
REPLAY_MISTAKES: Mistakes = {
    "a block is idle when its last holder has given it back, not its first: count them": {"drop": _drops_all},
    "the longest idle is evicted, not the one that became idle last": {"victim": lambda pool: pool.idle[-1]},
    "since when it is idle counts, not when the text first came into the pool": {"victim": _first_idle},
    "since when it is idle counts, not when it was last asked for: it may have been held for long": {
        "hold": _holds_and_moves,
        "victim": _first_idle,
    },
    "a text that is held again is not idle, and must not be evicted": {"is_held_again": lambda pool, text: None},
    "as long as a block is free, no text is evicted": {
        "is_full": lambda pool: len(pool.refs) == pool.num_blocks or bool(pool.idle)
    },
    "a block that is held cannot be evicted": {"victim": lambda pool: next(iter(pool.refs))},
    "the longest idle is evicted, not the smallest number": {"victim": lambda pool: min(pool.idle)},
}


def _expected(part: str, mistakes: Mistakes) -> Expected:
    """Expect the part of a pool, "hits" or "evicted", that it has when all events are played."""

    def played(pool_class: type[Pool], events: list[Event], num_blocks: int) -> Any:
        return getattr(pool_class(num_blocks).play(events), part)

    wrong = {why: partial(played, type("WrongPool", (Pool,), methods)) for why, methods in mistakes.items()}
    return Expected(partial(played, Pool), wrong)


def _draw_events(rng: Random) -> tuple[list[Event], int]:
    """Draw events in which no more texts are held at a time than there are blocks."""
    num_blocks = rng.randint(1, 4)
    events: list[Event] = []
    held: list[int] = []
    names = rng.sample(range(1000), 6) if rng.random() < 0.3 else range(6)
    for _ in range(rng.choice((rng.randint(2, 14), 60))):
        if held and rng.random() < 0.5:
            events.append((LEAVE, held.pop(rng.randrange(len(held)))))
            continue
        text = names[rng.randint(0, num_blocks + 1)]
        if text in held or len(set(held)) < num_blocks:
            events.append((JOIN, text))
            held.append(text)
    return events, num_blocks


def _events(line: str) -> list[Event]:
    return [(JOIN if word[0] == "+" else LEAVE, int(word[1:])) for word in line.split()]


EVENTS = [
    (_events("+0"), 1),
    (_events("+0 -0 +0"), 1),
    (_events("+0 +0"), 1),
    (_events("+0 -0 +1"), 1),
    (_events("+0 -0 +1"), 2),
    (_events("+0 +1 -1 -0 +2"), 2),
    (_events("+1 +0 -1 -0 +2"), 2),
    (_events("+0 +0 -0 +1 -1 +2"), 2),
    (_events("+0 +1 -0 -1 +0 +2"), 2),
    (_events("+0 +1 -0 -1 +0 -0 +2"), 2),
    (_events("+0 +1 +1 -1 -0 +2"), 2),
    (_events("+0 +1 +0 -0 -1 -0 +2"), 2),
    (_events("+0 +1 -1" + 9 * " +0" + 9 * " -0" + " +2 -0"), 2),
    *draw(_draw_events, 120),
]

REPLAY = {
    "hits": _expected("hits", HIT_MISTAKES | REPLAY_MISTAKES),
    "evicted": _expected("evicted", REPLAY_MISTAKES),
}
register("15.3", Comparison(EVENTS, REPLAY, inputs("events", "num_blocks")))

# 15.4

register("15.4", require_policy)
