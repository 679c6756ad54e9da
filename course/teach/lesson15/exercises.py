"""Checkers of lesson 15: keys of blocks, what a prompt shares, eviction with ref counts, a policy of your own."""

from __future__ import annotations

from random import Random

from ..exercises.as_solved import as_solved_by_name
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import register
from ..exercises.piece_check import register_piece
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
    },
    "num_shared": {
        "the block that the last token is written to must not be shared": {SHARED: "leading"},
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


PLAN = as_solved_by_name("15.2", PLAN_MISTAKES)
register("15.2", Comparison(draw(_draw_prompt, 60), PLAN, inputs("prompt_len", "found", "block_size")))

# 15.3

OLDEST = "next(iter(idle))"
OF_EVICTION = {
    "a block is idle when its last holder has given it back, not its first: count them": {
        "if not holders[text]": "if True"
    },
    "since when it is idle counts, not when the text first came into the pool": {
        OLDEST: "next(other for other in holders if other in idle)"
    },
    "since when it is idle counts, not when it was last asked for: it may have been held for long": {
        OLDEST: "next(other for other in holders if other in idle)",
        "holders.get(text, 0)": "holders.pop(text, 0)",
    },
    "a text that is held again is not idle, and must not be evicted": {"idle.pop(text, None)": "pass"},
    "as long as a block is free, no text is evicted": {"elif len(holders)": "elif idle or len(holders)"},
}
REPLAY_MISTAKES = {
    "hits": {
        "a text that others hold is a hit, too": {"hits += 1": "hits += text in idle"},
        "an idle text is a hit: freeing a block does not empty it": {"hits += 1": "hits += text not in idle"},
    },
    "evicted": OF_EVICTION,
}


def _draw_events(rng: Random) -> tuple[list[tuple[str, int]], int]:
    """Draw events in which no more texts are held at a time than there are blocks."""
    num_blocks, number = rng.choice(((1, 8), (2, 14), (2, 60), (3, 14), (4, 60), (20, 400)))
    events: list[tuple[str, int]] = []
    held: list[int] = []
    names = rng.choice((range(num_blocks + 2), rng.sample(range(1000), num_blocks + 2)))
    for _ in range(rng.randint(2, number)):
        text = rng.choice(names)
        if held and rng.random() < 0.5:
            events.append(("drop", held.pop(rng.randrange(len(held)))))
        elif text in held or len(set(held)) < num_blocks:
            events.append(("hold", text))
            held.append(text)
    return events, num_blocks


REPLAY = as_solved_by_name("15.3", REPLAY_MISTAKES)
register("15.3", Comparison(draw(_draw_events, 150), REPLAY, inputs("events", "num_blocks")))

# 15.4

register("15.4", require_policy)


# 15.5

register_piece("15.5")
