"""Checkers of lesson 04: index tensors for the gather, flat slots for the append, and attention without a cat."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from roseinfer.generate import generate
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied, stage_ops, trace_once
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, Expected, draw, part
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor, explain_tokens
from ..exercises.solutions import solution
from ..exercises.stage_checks import MIXED, equal_step, require_stage, require_tokens
from ..exercises.tensor_checks import named_tensors
from ..exercises.wrong import Failed, Wrong

Tables = list[list[int]]  # the block ids of each sequence

BLOCK_SIZES = (1, 3, 4, 10, 16)
LARGEST_ID = 70_000


def _tables(rng: Random, num_tokens: list[int], block_size: int) -> Tables:
    """Draw block ids for so many tokens a sequence; sometimes one block more, as after a step has reserved it."""
    widths = [-(-n // block_size) + rng.choice((0, 0, 1)) for n in num_tokens]
    ids = iter(rng.sample(range(rng.choice((10 * sum(widths), LARGEST_ID))), sum(widths)))
    return [[next(ids) for _ in range(width)] for width in widths]


def on_lists(answer: Callable[..., object], *case: object) -> object:
    """Return what the answer returns. Raises Wrong if it has changed the lists of the engine that it was given."""
    given = copy.deepcopy(case)
    got = answer(*case)
    for before, after in zip(given, case, strict=True):
        if before != after:
            raise Wrong(
                f"you have changed {before} to {after}: these lists belong to the engine, leave them as they are"
            )
    return got


# 04.1


def _draw_gather(rng: Random) -> tuple[Tables, int, int]:
    size = rng.choice(BLOCK_SIZES)
    lengths = [rng.randint(1, 3 * size + 2) for _ in range(rng.randint(1, 5))]
    return _tables(rng, lengths, size), max(lengths), size


# (block ids of each sequence, longest length, block size)
GATHERS = [
    ([[2]], 3, 4),
    ([[5, 1], [3]], 8, 4),  # the longest ends where its block ends
    ([[5, 1], [3]], 4, 4),  # the block of the next token is there already, in one of them
    ([[5], []], 3, 4),  # one that has no block at all
    ([[4, 1, 6], [2, 5], [3, 0, 7]], 11, 4),
    ([[6, 2], [4]], 65, 64),
    *draw(_draw_gather),
]


def _gather_with(answer: Callable[..., object], tables: Tables, longest: int, size: int) -> dict[str, Tensor]:
    got = named_tensors(on_lists(answer, tables, longest, size), "blocks", "slots")
    for name, index in got.items():
        if index.is_floating_point():
            raise Wrong(f"{name} is floating point, and cannot be an index: / divides into fractions, // does not")
    if got["blocks"].dim() == 1 and got["slots"].dim() == 2:
        raise Wrong("the wrong way round: blocks first, then slots")
    if (got["blocks"] < 0).any():
        raise Wrong("a block below 0 is read from the end of the pool; where there is no block, it is 0")
    return got


_blocks, _slots = (part(solution("04.1", torch=torch), number) for number in range(2))


def _explain_slots(got: Tensor, want: Tensor) -> str | None:
    message = explain_tensor(got, want)
    if message and got.dim() == 2:
        return f"{message}: the slot of token t is the same in every sequence, so one row does for all"
    return message


BLOCK_MISTAKES: dict[str, Callable[..., Tensor]] = {
    "every token reads its sequence's first block; token t lies in number t // block_size of the row": (
        lambda tables, longest, size: torch.tensor([[(row + [0])[0]] * longest for row in tables])
    ),
    "where a sequence has no block of its own any more, blocks is 0, not its last block": (
        lambda tables, longest, size: _blocks([row + row[-1:] * longest for row in tables], longest, size)
    ),
}
SLOT_MISTAKES = {
    "that is t // block_size, which picks the block; the slot is what is left over": (
        lambda tables, longest, size: torch.arange(longest) // size
    ),
    "that is the token's number; its slot is t % block_size": lambda tables, longest, size: torch.arange(longest),
}


register(
    "04.1",
    Comparison(
        GATHERS,
        {
            "blocks": Expected(_blocks, BLOCK_MISTAKES, explain_tensor),
            "slots": Expected(_slots, SLOT_MISTAKES, _explain_slots),
        },
        lambda tables, longest, size: f"block tables {tables}, longest {longest}, block size {size}",
        _gather_with,
    ),
)


# 04.2


def _draw_append(rng: Random) -> tuple[Tables, list[int], int]:
    size = rng.choice(BLOCK_SIZES)
    num_cached = [rng.randint(0, 3 * size + 1) for _ in range(rng.randint(1, 6))]
    return _tables(rng, [n + 1 for n in num_cached], size), num_cached, size


# (block ids of each sequence, cached tokens of each, block size)
APPENDS = [
    ([[5]], [0], 4),
    ([[9, 1], [2, 5], [3, 7]], [3, 4, 5], 4),  # before, at and after a block's edge
    ([[9, 8, 6]], [6], 4),  # holds a block more than it needs yet
    ([[0, 2], [1, 3], [5, 4]], [63, 64, 65], 64),
    ([[40_000_000], [7]], [5, 9], 64),  # the row is past what fp32 and int32 can count to
    *draw(_draw_append),
]


def _row_of_each(place: Callable[[list[int], int, int], int]) -> Callable[[Tables, list[int], int], Tensor]:
    """Make an answer for a batch from `place`, which answers for one sequence."""
    return lambda tables, num_cached, size: torch.tensor(
        [place(row, n, size) for row, n in zip(tables, num_cached, strict=True)]
    )


ROW_MISTAKES = {
    "there the newest cached token lies: cached are the tokens 0 to n - 1, and the new one is n": _row_of_each(
        lambda row, n, size: row[(n - 1) // size] * size + (n - 1) % size
    ),
    "that leaves the slot of token n empty; cached are the tokens 0 to n - 1": _row_of_each(
        lambda row, n, size: (row + [0])[(n + 1) // size] * size + (n + 1) % size
    ),
    "that is in the last block of the table, which may lie ahead of what is filled": _row_of_each(
        lambda row, n, size: row[-1] * size + n % size
    ),
    "the slot is right, the block is that of the token before": _row_of_each(
        lambda row, n, size: row[(n - 1) // size] * size + n % size
    ),
    "that is the token's number; its block has to be looked up in the table": _row_of_each(lambda row, n, size: n),
    "that is block + slot, but a block is block_size slots long": _row_of_each(
        lambda row, n, size: row[n // size] + n % size
    ),
    "that is the block alone": _row_of_each(lambda row, n, size: row[n // size]),
}


register(
    "04.2",
    Comparison(
        APPENDS,
        Expected(solution("04.2", torch=torch), ROW_MISTAKES, explain_tensor),
        lambda tables, num_cached, size: f"block tables {tables}, {num_cached} cached, block size {size}",
        on_lists,
    ),
)


# 04.3


@exercise("04.3")
def without_cat(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    for num_prompts in (1, 3):
        if message := _tokens(answer, model, [[3 + i] * 9 for i in range(num_prompts)]):
            raise Wrong(
                f"{num_prompts} × a prompt of 9 tokens: {message}; is the new token in its column before attention "
                "reads?"
            )
    if message := _tokens(answer, model, MIXED):
        raise Wrong(
            f"equal lengths are right, mixed ones not: {message}. The mask expects the new token in the last "
            "column, after the longest sequence, for every sequence"
        )
    if message := _tokens(answer, model, [[5] * 3, list(range(1, 7)), [9]], block_size=4):
        raise Wrong(f"right within a block, wrong where the last column starts a new one (block size 4): {message}")
    require_tokens(answer, model)
    for num_seqs, num_tokens in STEPS:
        _require_budget(answer, model, num_seqs, num_tokens)
    require_contract(answer)


def _require_budget(answer: type[Stage], model: Model, num_seqs: int, num_tokens: int) -> None:
    step = f"with {num_seqs} × {num_tokens} tokens cached, the step"
    cats = stage_ops(trace_once(equal_step(answer, model, num_seqs, num_tokens)))["aten::cat"]
    if cats:
        raise Wrong(f"the tokens are right, but {step} makes {cats} cats; the budget is 0")
    copied = bytes_copied(equal_step(answer, model, num_seqs, num_tokens)).copied
    budget = _budget(model, num_seqs, num_tokens)
    if copied > budget:
        raise Wrong(
            f"the tokens are right without a cat, but {step} copies {copied:,} bytes; the budget is {budget:,}. "
            "Is what was gathered copied once more?"
        )


STEPS = ((1, 3), (4, 40), (3, 64), (20, 70))  # sequences, and tokens of each


def _tokens(stage_class: type[Stage], model: Model, prompts: list[list[int]], block_size: int = 64) -> str | None:
    """Say what is wrong with the tokens of the stage; None if nothing is."""
    stage = stage_class(model, num_blocks=32, block_size=block_size)
    try:
        seqs = generate(stage, prompts, SamplingParams(max_tokens=8, ignore_eos=True))
    except Exception as error:
        raise Failed(f"prompts of {list(map(len, prompts))} tokens, block size {block_size}", error) from None
    return explain_tokens([seq.output_ids for seq in seqs], reference_generate(model, prompts, 8))


def _budget(model: Model, num_seqs: int, num_tokens: int) -> int:
    """Return the bytes of a step: each column gathered once, the new token stored twice, and two index tensors.

    The new token is written to its column in the batch and to the pool.
    """
    c = model.config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize
    columns = num_seqs * (num_tokens + 1)
    indices = 2 * c.num_layers * columns * torch.int64.itemsize
    return token * (columns + 2 * num_seqs) + indices
