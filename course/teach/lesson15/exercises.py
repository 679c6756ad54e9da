"""Checkers of lesson 15: keys of blocks, what a prompt shares, eviction with ref counts, a policy of your own."""

from __future__ import annotations

from random import Random

from ..exercises.as_solved import as_solved_by_name
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import register
from .cache_checks import require_policy
from .key_checks import KEYS, require_keys

# 15.1

register("15.1", require_keys, KEYS)

# 15.2


CACHED, SHARED = "min(leading * block_size, prompt_len - 1)", "num_cached // block_size"
PLAN_MISTAKES = {
    "num_cached": {
        "a block after one that is missing cannot be used: K and V before it are missing": {
            "(found + [False]).index(False)": "sum(found)"
        },
        "at least one token has to be computed: the next token is chosen from its logits": {
            CACHED: "leading * block_size"
        },
        "with a copy of the last block a single token is computed, not all of the block": {
            CACHED: "min(leading, (prompt_len - 1) // block_size) * block_size"
        },
        "only what was found is cached": {CACHED: "prompt_len - 1"},
        "those are the tokens to compute, not the ones that are cached": {
            "return num_cached": "return prompt_len - num_cached"
        },
    },
    "num_shared": {
        "the block that the last token is written to must not be shared": {SHARED: "leading"},
        "a block with a part of the cached tokens is copied, not shared": {SHARED: "-(-num_cached // block_size)"},
        "the last block found can be shared as long as nothing is written to it": {SHARED: "max(0, leading - 1)"},
    },
    "num_new": {
        "the copy needs a block, too": {"- num_shared": "- leading"},
        "the prompt's blocks alone: the answer takes another one when it needs it": {
            "-(-prompt_len // block_size)": "prompt_len // block_size + 1"
        },
        "shared blocks are not taken again": {" - num_shared": ""},
    },
}


def _draw_prompt(rng: Random) -> tuple[int, list[bool], int]:
    size, blocks = rng.choice(((1, 5), (2, 5), (3, 5), (4, 5), (5, 5), (64, 40)))
    blocks = rng.randint(0, blocks)
    n = max(1, blocks * size + rng.choice((0, 0, rng.randrange(size))))
    return n, [rng.random() < rng.choice((0.5, 0.9, 1.0)) for _ in range(n // size)], size


PROMPTS = [
    (4, [True], 4),
    (12, [True, False, True], 4),
    (3_000, [True] * 180 + [False] + [True] * 6, 16),
    *draw(_draw_prompt),
]

PLAN = as_solved_by_name("15.2", PLAN_MISTAKES)
register("15.2", Comparison(PROMPTS, PLAN, inputs("prompt_len", "found", "block_size")))

# 15.3

Event = tuple[str, int]

OLDEST = "next(iter(idle))"
# A mistaken pool may have evicted a text that is held.
LOST = {
    "holders[text] -= 1": "if text not in holders: continue\n            holders[text] -= 1",
    "if not holders[text]": "if holders[text] <= 0",
}
EVICTION_MISTAKES: dict[str, dict[str, str]] = {
    "a block is idle when its last holder has given it back, not its first: count them": {
        **LOST,
        "holders[text] -= 1\n": "holders[text] = 0\n",
    },
    "the longest idle is evicted, not the one that became idle last": {OLDEST: "list(idle)[-1]"},
    "since when it is idle counts, not when the text first came into the pool": {
        OLDEST: "next(other for other in holders if other in idle)"
    },
    "since when it is idle counts, not when it was last asked for: it may have been held for long": {
        OLDEST: "next(other for other in holders if other in idle)",
        "holders.get(text, 0)": "holders.pop(text, 0)",
    },
    "a text that is held again is not idle, and must not be evicted": {**LOST, "idle.pop(text, None)": "pass"},
    "as long as a block is free, no text is evicted": {"elif len(holders)": "elif idle or len(holders)"},
    "a block that is held cannot be evicted": {
        **LOST,
        OLDEST: "next(iter(holders))",
        "del idle[oldest], holders[oldest]": "holders.pop(oldest); idle.pop(oldest, None)",
    },
}
REPLAY_MISTAKES = {
    "hits": {
        "a text that others hold is a hit, too": {"hits += 1": "hits += text in idle"},
        "an idle text is a hit: freeing a block does not empty it": {"hits += 1": "hits += text not in idle"},
        **EVICTION_MISTAKES,
    },
    "evicted": EVICTION_MISTAKES,
}


def _draw_events(rng: Random) -> tuple[list[Event], int]:
    return _events_of(rng, rng.randint(1, 4), rng.choice((rng.randint(2, 14), 60)))


def _events_of(rng: Random, num_blocks: int, number: int) -> tuple[list[Event], int]:
    """Draw events in which no more texts are held at a time than there are blocks."""
    events: list[Event] = []
    held: list[int] = []
    names = rng.sample(range(1000), num_blocks + 2) if rng.random() < 0.3 else range(num_blocks + 2)
    for _ in range(number):
        if held and rng.random() < 0.5:
            events.append(("drop", held.pop(rng.randrange(len(held)))))
            continue
        text = rng.choice(names)
        if text in held or len(set(held)) < num_blocks:
            events.append(("hold", text))
            held.append(text)
    return events, num_blocks


def _events(line: str) -> list[Event]:
    return [("hold" if word[0] == "+" else "drop", int(word[1:])) for word in line.split()]


EVENTS = [
    (_events("+0 -0 +0"), 1),
    (_events("+0 -0 +1"), 2),
    (_events("+0 +1 -1 -0 +2"), 2),
    (_events("+0 +1 -0 -1 +0 -0 +2"), 2),
    (_events("+0 +1 +0 -0 -1 -0 +2"), 2),
    (_events("+0 +1 -1" + 9 * " +0" + 9 * " -0" + " +2 -0"), 2),
    (_events(" ".join(f"+{i}" for i in range(30)) + " -9 -7 -8 +7 +30 +31"), 30),
    _events_of(Random(0), 20, 400),
    *draw(_draw_events, 120),
]

REPLAY = as_solved_by_name("15.3", REPLAY_MISTAKES)
register("15.3", Comparison(EVENTS, REPLAY, inputs("events", "num_blocks")))

# 15.4

register("15.4", require_policy)
