"""Checkers of lesson 04: index tensors for the gather, flat slots for the append, and attention without a cat."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from roseinfer.generate import generate
from roseinfer.models import Model
from roseinfer.profiling import MODEL_OPS, bytes_copied, count_ops
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from .exercise import Wrong, exercise
from .explain import explain_tensor, explain_tokens
from .stage_checks import MIXED, equal_step, require_tokens

# (block ids of each sequence, longest length, block_size)
GATHERS = [
    ([[4, 1, 6], [2, 5], [3, 0, 7]], 11, 4),
    ([[2]], 3, 4),
    ([[5, 1], [3]], 8, 4),  # the longest ends where its block ends
    ([[6, 2], [4]], 65, 64),
]
# (block ids of each sequence, cached tokens of each, block_size)
APPENDS = [
    ([[9, 1], [2, 5], [3, 7]], [3, 4, 5], 4),  # before, at and behind a block's edge
    ([[9, 8, 6]], [6], 4),  # holds a block more than it needs yet
    ([[0, 2], [1, 3], [5, 4]], [63, 64, 65], 64),
]


@exercise(
    "04.1",
    title="Block and slot of every token",
    minutes=10,
    difficulty=2,
    importance=5,
    stub="def gather_indices(block_tables, longest, block_size): ...",
    task="Return the pair `(blocks, slots)` for which `pool[blocks, slots]` is the padded batch: `blocks` [B, T] and "
    "`slots` [T], int64. `block_tables` has a list of block ids for each sequence, in token order; T is `longest`. "
    "Where a sequence has no block of its own any more, `blocks` is 0.",
    hints=(
        "Token t lies in slot t % block_size of the sequence's block number t // block_size.",
        "Make every row of the block tables equally wide first: longest tokens take -(-longest // block_size) blocks.",
        "torch.tensor(rows)[:, tokens // block_size] picks, for each row, the block of every token.",
    ),
)
def gather_indices(answer: Callable[[list[list[int]], int, int], tuple[Tensor, Tensor]]) -> None:
    for tables, longest, size in GATHERS:
        case = f"block tables {tables}, longest {longest}, block size {size}"
        tokens = torch.arange(longest)
        width = -(-longest // size)
        table = torch.tensor([(row + [0] * width)[:width] for row in tables])
        want = table[:, tokens // size], tokens % size
        got = answer([list(row) for row in tables], longest, size)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong(f"expected a pair (blocks, slots), got {type(got).__name__}")
        _explain_indices(case, got, want, tokens // size)


def _explain_indices(case: str, got: tuple, want: tuple[Tensor, Tensor], block_of_token: Tensor) -> None:
    (blocks, slots), (want_blocks, want_slots) = got, want
    if not (isinstance(blocks, Tensor) and isinstance(slots, Tensor)):
        raise Wrong(f"expected two tensors, got {type(blocks).__name__} and {type(slots).__name__}")
    for name, index in (("blocks", blocks), ("slots", slots)):
        if index.is_floating_point():
            raise Wrong(f"{name} is floating point, and cannot be an index: / divides into fractions, // does not")
    if blocks.dim() == 1 and slots.dim() == 2:
        raise Wrong("the wrong way round: blocks first, then slots")
    if slots.dim() == 2:
        raise Wrong(
            f"{case}: slots has shape {tuple(slots.shape)}, expected {tuple(want_slots.shape)}: the slot of token t is "
            "the same in every sequence, so one row does for all"
        )
    if slots.shape == want_slots.shape and torch.equal(slots, block_of_token) and len(block_of_token.unique()) > 1:
        raise Wrong(f"{case}: slots holds t // block_size, which picks the block; the slot is what is left over")
    if (blocks < 0).any():
        raise Wrong(f"{case}: a block below 0 is read from the end of the pool; where there is no block, it is 0")
    for name, mine, theirs in (("blocks", want_blocks, blocks), ("slots", want_slots, slots)):
        if message := explain_tensor(theirs, mine):
            raise Wrong(f"{case}: {name}: {message}")


@exercise(
    "04.2",
    title="Where the new token goes",
    minutes=10,
    difficulty=2,
    importance=5,
    stub="def slot_mapping(block_tables, num_cached, block_size): ...",
    task="An engine often keeps one number for a place in the pool: block × block_size + slot, its row in "
    "`pool.flatten(0, 1)`. Return that number for the new token of each sequence, an int64 tensor [B]. "
    "`num_cached[i]` tokens of sequence i are cached; the block of the new token is in its table already.",
    hints=(
        "Cached are the tokens 0 to n - 1. Which number does the new one have?",
        "divmod(n, block_size) is (place in the table, slot).",
        "A table may be longer than what is filled: its last block is not always the one to write to.",
    ),
)
def slot_mapping(answer: Callable[[list[list[int]], list[int], int], Tensor]) -> None:
    for tables, num_cached, size in APPENDS:
        want = torch.tensor([row[n // size] * size + n % size for row, n in zip(tables, num_cached, strict=True)])
        got = answer([list(row) for row in tables], list(num_cached), size)
        if isinstance(got, Tensor) and got.shape == want.shape and not got.is_floating_point():
            for i, (row, n) in enumerate(zip(tables, num_cached, strict=True)):
                if got[i] != want[i]:
                    where = f"sequence {i} with blocks {row}, {n} cached, block size {size}"
                    raise Wrong(f"{where}: {int(got[i])}, expected {int(want[i])}{_why(int(got[i]), row, n, size)}")
        if message := explain_tensor(got, want):
            raise Wrong(message)


def _why(got: int, row: list[int], n: int, size: int) -> str:
    """How one comes by a wrong row of the pool; empty when nobody knows."""
    index, slot = divmod(n, size)
    if (n + 1) // size < len(row) and got == row[(n + 1) // size] * size + (n + 1) % size:
        return f": that leaves the slot of token {n} empty; cached are the tokens 0 to {n - 1}"
    reasons = {
        row[(n - 1) // size] * size + (n - 1) % size: f": there lies token {n - 1}, cached already; the new one is {n}",
        row[-1] * size + slot: ": that is in the last block of its table, which may lie ahead of what is filled",
        n: ": that is the token's number; its block has to be looked up in the table",
        row[index] + slot: ": block + slot, but a block is block_size slots long",
        row[index]: ": that is the block alone",
    }
    return reasons.get(got, "")


@exercise(
    "04.3",
    title="Attention without a cat",
    minutes=30,
    difficulty=4,
    importance=3,
    stub="class WithoutCat(VectorizedGather): ...",
    task="Stage 04 gathers T columns, and then `DenseStep` copies all of them once more to put the new token behind. "
    "Gather T + 1 columns instead, and let attention write the new token into the last one. Budget: no `aten::cat` in "
    "the whole step; each cached byte copied once, the new token's twice, and the index tensors. Tokens stay equal.",
    hints=(
        "Override build_batched_past to ask super() for longest + 1 tokens: one column more, with any values in it.",
        "Subclass DenseStep: in __call__, keys[:, :, -1] = k puts the new token into the gathered tensor. The last "
        "column is the right one for short sequences too: there the mask of build expects it.",
        "Override build to make your step from super().build(seqs), its past and its mask. append reads "
        "step.presents, so keep (keys, values) of each layer there.",
    ),
)
def without_cat(answer: type[Stage], model: Model) -> None:
    if isinstance(answer, type) and issubclass(answer, Stage):
        if message := _tokens(answer, model, [[3 + i] * 9 for i in range(3)]):
            raise Wrong(f"three prompts of 9 tokens: {message}; is the new token in its column before attention reads?")
        if message := _tokens(answer, model, MIXED):
            raise Wrong(
                f"equal lengths are right, mixed ones not: {message}. The mask expects the new token in the last "
                "column, behind the longest sequence, for every sequence"
            )
        if message := _tokens(answer, model, [[5] * 3, list(range(1, 7)), [9]], block_size=4):
            raise Wrong(f"right within a block, wrong where the last column starts a new one (block size 4): {message}")
    require_tokens(answer, model)
    num_seqs, num_tokens = 4, 40
    cats = count_ops(equal_step(answer, model, num_seqs, num_tokens), outside=MODEL_OPS)["aten::cat"]
    if cats:
        raise Wrong(f"the tokens are right, but the step makes {cats} cats; the budget is 0")
    copied = bytes_copied(equal_step(answer, model, num_seqs, num_tokens)).copied
    budget = _budget(model, num_seqs, num_tokens)
    if copied > budget:
        raise Wrong(
            f"the tokens are right without a cat, but the step copies {copied:,} bytes; the budget is {budget:,}. Is "
            "what was gathered copied once more?"
        )


def _tokens(stage_class: type[Stage], model: Model, prompts: list[list[int]], block_size: int = 64) -> str | None:
    """What is wrong with the stage's tokens, if anything."""
    stage = stage_class(model, num_blocks=32, block_size=block_size)
    seqs = generate(stage, prompts, SamplingParams(max_tokens=8, ignore_eos=True))
    return explain_tokens([seq.output_ids for seq in seqs], reference_generate(model, prompts, 8))


def _budget(model: Model, num_seqs: int, num_tokens: int) -> int:
    """Bytes: every column gathered once, the new token put in its column and in the pool, and two index tensors."""
    c = model.config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize
    columns = num_seqs * (num_tokens + 1)
    indices = 2 * c.num_layers * columns * torch.int64.itemsize
    return token * (columns + 2 * num_seqs) + indices
