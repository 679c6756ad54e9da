"""Checkers of lesson 04: index tensors for the gather, flat slots for the append, and attention without a cat."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.profiling import bytes_copied, stage_ops, trace_once
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.stage_checks import MIXED, cached_in, require_tokens, step_of
from ..exercises.tensor_checks import named_tensors
from ..exercises.wrong import Wrong

Tables = list[list[int]]  # the block ids of each sequence

BLOCK_SIZES = (1, 3, 4, 10, 16)
LARGEST_ID = 70_000


def _tables(rng: Random, num_tokens: list[int], block_size: int) -> Tables:
    """Draw block ids for so many tokens a sequence; sometimes one block more, as after a step has reserved it."""
    widths = [-(-n // block_size) + rng.choice((0, 0, 1)) for n in num_tokens]
    ids = iter(rng.sample(range(rng.choice((10 * sum(widths), LARGEST_ID))), sum(widths)))
    return [[next(ids) for _ in range(width)] for width in widths]


# 04.1


def _draw_gather(rng: Random) -> tuple[Tables, int, int]:
    size = rng.choice(BLOCK_SIZES)
    lengths = [rng.randint(1, 3 * size + 2) for _ in range(rng.randint(1, 5))]
    return _tables(rng, lengths, size), max(lengths), size


COLUMNS, SLOTS = "table[:, tokens // block_size]", "tokens % block_size"
GATHER_MISTAKES = {
    "blocks": {
        "the wrong way round: blocks first, then slots": {f"{COLUMNS}, {SLOTS}": f"{SLOTS}, {COLUMNS}"},
        "every token reads its sequence's first block; token t lies in number t // block_size of the row": {
            COLUMNS: "table[:, tokens * 0]"
        },
        "where a sequence has no block of its own any more, blocks is 0, not its last block": {
            "[0] * width": "(row[-1:] or [0]) * width"
        },
        "a block below 0 is read from the end of the pool; where there is no block, it is 0": {
            "[0] * width": "[-1] * width"
        },
    },
    "slots": {
        "that is t // block_size, which picks the block; the slot is what is left over": {
            SLOTS: "tokens // block_size"
        },
        "that is a fraction, and no index: / divides, % gives what is left over": {SLOTS: "tokens / block_size"},
        "the slot of token t is the same in every sequence, so one row does for all": {
            SLOTS: f"({SLOTS}).expand(len(table), -1)"
        },
    },
}


def _gather_with(answer: Callable[..., object], *case: Any) -> dict[str, Tensor]:
    return named_tensors(answer(*case), *GATHER_MISTAKES)


GATHERS = [([[5, 1], [3]], 4, 4), ([[5], []], 3, 4), *draw(_draw_gather)]  # a block more than is needed, and none
GATHERED = as_solved_by_name("04.1", GATHER_MISTAKES, explain_tensor, _gather_with, torch=torch)
register("04.1", Comparison(GATHERS, GATHERED, inputs("block_tables", "longest", "block_size"), _gather_with))


# 04.2


def _draw_append(rng: Random) -> tuple[Tables, list[int], int]:
    size = rng.choice(BLOCK_SIZES)
    num_cached = [rng.randint(0, 3 * size + 1) for _ in range(rng.randint(1, 6))]
    return _tables(rng, [n + 1 for n in num_cached], size), num_cached, size


APPENDS = [
    ([[5]], [0], 4),
    ([[40_000_000], [7]], [5, 9], 64),  # the row is past what fp32 and int32 can count to
    *draw(_draw_append),
]
ROW = "row[index] * block_size + slot"
ROW_MISTAKES = {
    "there the newest cached token lies: cached are the tokens 0 to n - 1, and the new one is n": {
        "divmod(n,": "divmod(n - 1,"
    },
    "that leaves the slot of token n empty; cached are the tokens 0 to n - 1": {
        "divmod(n,": "divmod(n + 1,",
        "row[index]": "(row + [0])[index]",
    },
    "that is in the last block of the table, which may lie ahead of what is filled": {"row[index]": "row[-1]"},
    "the slot is right, the block is that of the token before": {
        "divmod(n, block_size)": "((n - 1) // block_size, n % block_size)"
    },
    "that is the token's number; its block has to be looked up in the table": {"row[index]": "index"},
    "that is block + slot, but a block is block_size slots long": {ROW: "row[index] + slot"},
}
MAPPED = as_solved("04.2", ROW_MISTAKES, explain_tensor, torch=torch)
register("04.2", Comparison(APPENDS, MAPPED, inputs("block_tables", "num_cached", "block_size")))


# 04.3


IN_ITS_COLUMN = "is the new token in its column before attention reads?"
BATCHES = [  # prompts, block size, what a wrong token means where those before are right
    ([[3] * 9], 64, IN_ITS_COLUMN),
    ([[3] * 9, [4] * 9, [5] * 9], 64, IN_ITS_COLUMN),
    (
        MIXED,
        64,
        "equal lengths are right, mixed ones not. The mask expects the new token in the last column, after the longest "
        "sequence, for every sequence",
    ),
    ([[5] * 3, list(range(1, 7)), [9]], 4, "right within a block, wrong where the last column starts a new one"),
]
STEPS = ([3], [40] * 4, [64] * 3, [70, 3, 64, 9] * 3)  # prompts


@exercise("04.3")
def without_cat(answer: type[Stage], model: Model) -> None:
    for prompts, block_size, meaning in BATCHES:
        require_tokens(answer, model, prompts=prompts, block_size=block_size, meaning=meaning)
    for lengths in STEPS:
        _require_budget(answer, model, lengths)
    require_contract(answer)


def _require_budget(answer: type[Stage], model: Model, lengths: list[int]) -> None:
    step = f"with {cached_in(lengths)} tokens cached, the step"
    cats = stage_ops(trace_once(step_of(answer, model, lengths)))["aten::cat"]
    if cats:
        raise Wrong(f"the tokens are right, but {step} makes {cats} cats; the budget is 0")
    copied = bytes_copied(step_of(answer, model, lengths)).copied
    budget = _budget(model, lengths)
    if copied > budget:
        raise Wrong(
            f"the tokens are right without a cat, but {step} copies {copied:,} bytes; the budget is {budget:,}. "
            "Is what was gathered copied once more?"
        )


def _budget(model: Model, lengths: list[int]) -> int:
    """Return the bytes of a step: each column gathered once, the new token stored twice, and two index tensors.

    The new token is written to its column in the batch and to the pool.
    """
    c = model.config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize
    columns = len(lengths) * (max(lengths) + 1)
    indices = 2 * c.num_layers * columns * torch.int64.itemsize
    return token * (columns + 2 * len(lengths)) + indices
