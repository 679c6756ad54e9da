"""Checkers of lesson 01: count the naive gather, write it, then write it without zeroed tensors."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.stage import Stage

from ..exercises.drawn import Case, Comparison, Expected, dict_of, draw, inputs, part
from ..exercises.exercise import exercise, register
from ..exercises.solutions import solution
from ..exercises.stage_checks import (
    GATHER_SPAN,
    NUM_TOKENS,
    by_sequence,
    require_cached,
    require_nothing_kept,
    require_tokens,
    step_ops,
    zeroed_tensors,
)
from ..exercises.tensor_checks import explain_exactly, require_unchanged
from ..exercises.wrong import Wrong

BLOCK_SIZE = 64


# 01.2


def _num_shorter(lengths: list[int]) -> int:
    return sum(n < max(lengths) for n in lengths)


MISCOUNTS: dict[str, dict[str, Callable[[list[int]], int]]] = {  # of one layer
    "zeros": {
        "a sequence shorter than the longest is padded, and its pads are zeros too": len,
        "a shorter sequence has two pads, one for K and one for V": lambda n: len(n) + _num_shorter(n),
        "the longest sequence is not padded": lambda n: 3 * len(n),
        "several sequences may be as long as the longest, and none of them is padded": lambda n: 3 * len(n) - 2,
        "only k_seq is made by zeros, v_seq is a zeros_like": lambda n: 2 * (len(n) + _num_shorter(n)),
        "k_seq is made by zeros, too; you count the pads alone": lambda n: 2 * _num_shorter(n),
    },
    "zeros_like": {
        "only v_seq is a zeros_like, k_seq is made by zeros": lambda n: 2 * len(n),
        "pads are made by zeros": lambda n: len(n) + 2 * _num_shorter(n),
        "pads are made by zeros, both of them": lambda n: len(n) + _num_shorter(n),
        "it is made for each sequence, whatever its length": _num_shorter,
        "v_seq is made once a sequence, not once a block": lambda n: sum(-(-x // BLOCK_SIZE) for x in n),
    },
    "copy_": {
        "each block is copied for K and for V": lambda n: sum(-(-x // BLOCK_SIZE) for x in n),
        "a sequence is copied block by block, and each block for K and for V": len,
        "a sequence is copied block by block, and may have several": lambda n: 2 * len(n),
        "the last block is copied too, full or not": lambda n: 2 * sum(x // BLOCK_SIZE for x in n),
        "a sequence that fills its last block has no block after it": lambda n: 2 * sum(x // BLOCK_SIZE + 1 for x in n),
        "each sequence has a last block of its own that is not full": lambda n: 2 * -(-sum(n) // BLOCK_SIZE),
        "a sequence copies its own blocks, not as many as the longest": (
            lambda n: 2 * len(n) * -(-max(n) // BLOCK_SIZE)
        ),
        "a block is copied by one op, not token by token": lambda n: 2 * sum(n),
    },
    "cat": {
        "each shorter sequence is joined with its pads by a cat, too": lambda n: 2,
        "a shorter sequence has a cat for K and one for V": lambda n: 2 + _num_shorter(n),
        "every cat is made twice: for K and for V": lambda n: 1 + _num_shorter(n),
        "one cat joins all sequences of a layer; only shorter sequences need more": lambda n: 2 * len(n),
        "one more cat joins all sequences of a layer": lambda n: 2 * _num_shorter(n),
        "the longest sequence has no pads to be joined with": lambda n: 2 + 2 * len(n),
    },
}


def expected_count(op: str) -> Expected:
    right = part(solution("01.2"), op)
    mistakes: dict[str, Callable[..., int]] = {
        "you count one layer": lambda _, lengths: right(1, lengths),
        "you count 12 layers, num_layers says how many": lambda _, lengths: right(12, lengths),
    }
    for why, count in MISCOUNTS[op].items():
        mistakes[why] = lambda num_layers, lengths, count=count: num_layers * count(lengths)
    return Expected(right, mistakes)


def _step(rng: Random) -> Case:
    """Draw the lengths of a batch: some lengths occur twice, and some fill their blocks."""
    lengths = [rng.choice((rng.randint(1, 20), rng.randint(1, 150), 64, 128, 5)) for _ in range(rng.randint(1, 5))]
    return rng.randint(1, 6), lengths


STEPS = [(1, [1]), (1, [64]), (2, [10] * 8), (12, [65, 200]), (1, [63, 64, 65]), (3, [128, 128, 64]), *draw(_step)]

register(
    "01.2",
    Comparison(
        STEPS, {op: expected_count(op) for op in MISCOUNTS}, inputs("num_layers", "lengths"), dict_of(*MISCOUNTS)
    ),
)


# 01.1


def blocks_of(
    num_tokens: int, heads: int = 3, dim: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    """Make the blocks [H, 64, D] that num_tokens fill. Slots after the last token were never written, and are NaN."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    slots = torch.randn(heads, num_blocks * BLOCK_SIZE, dim, generator=generator, dtype=dtype)
    slots[:, num_tokens:] = torch.nan
    return [block.clone() for block in slots.split(BLOCK_SIZE, dim=1)]


def draw_blocks(rng: Random) -> tuple[list[Tensor], int]:
    num_tokens = rng.choice((rng.randint(1, 64), rng.randint(1, 300), 128, 192))
    return blocks_of(num_tokens, rng.randint(2, 4), rng.randint(2, 5), seed=rng.getrandbits(32)), num_tokens


# The shapes of the first come twice, with other values.
GATHERS: list[Case] = [
    *[(blocks_of(n, seed=seed), n) for n in (1, 5, 63, 64, 65, 128, 129) for seed in range(2)],
    (blocks_of(70, dtype=torch.float64), 70),
    (blocks_of(64, dtype=torch.float16), 64),
    *draw(draw_blocks),
]


def describe_blocks(blocks: list[Tensor], num_tokens: int, *_: Any) -> str:
    dtype = str(blocks[0].dtype).removeprefix("torch.")
    return f"num_tokens={num_tokens}, {len(blocks)} × {list(blocks[0].shape)} in {dtype}"


def on_blocks(answer: Callable[..., Any], blocks: list[Tensor], *arguments: Any) -> Any:
    """Return what the answer returns. Raises Wrong when it has changed the blocks."""
    given = [block.clone() for block in blocks]
    got = answer(given, *arguments)
    if len(given) != len(blocks):
        raise Wrong("blocks has changed: it is the cache, and the next step reads it again")
    names = [f"blocks[{i}]" for i in range(len(blocks))]
    require_unchanged(blocks, given, names, ": it is the cache, and the next step reads it again")
    return got


def slots(blocks: list[Tensor], num_tokens: int) -> Tensor:
    return torch.cat(blocks, dim=1).unsqueeze(0)


GATHERED = Expected(
    solution("01.1", torch=torch),
    {
        "you return all slots, also the unwritten ones of the last block": slots,
        "blocks are joined along their tokens, dimension 1": (
            lambda blocks, num_tokens: torch.cat(blocks)[None, :, :num_tokens]
        ),
        "the last block counts, full or not": lambda *case: slots(*case)[:, :, : case[1] // BLOCK_SIZE * BLOCK_SIZE],
        "you return the first block, and a sequence may have several": (
            lambda blocks, num_tokens: blocks[0][None, :, :num_tokens]
        ),
        "tokens fill the blocks from slot 0": lambda *case: slots(*case)[:, :, -case[1] :],
        "the blocks are in the order of their tokens": (
            lambda blocks, num_tokens: slots(blocks[::-1], num_tokens)[:, :, :num_tokens]
        ),
    },
    explain_exactly,
)

register("01.1", Comparison(GATHERS, GATHERED, describe_blocks, on_blocks))


# 01.3


@exercise("01.3")
def no_zeros(answer: type[Stage], model: Model) -> None:
    require_cached(answer, by_sequence)
    require_tokens(answer, model)
    require_nothing_kept(answer, model)
    for num_tokens in (NUM_TOKENS, BLOCK_SIZE, BLOCK_SIZE + NUM_TOKENS, 2 * BLOCK_SIZE + NUM_TOKENS):
        if zeroed := zeroed_tensors(step_ops(answer, model, GATHER_SPAN, num_tokens)):
            raise Wrong(
                f"the tokens are right, but with {num_tokens} tokens a sequence the gather still makes {zeroed} zeroed "
                "tensors a step; the budget is 0"
            )
