"""Checkers of lesson 01: count the naive gather, write it, then write it without zeroed tensors."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Case, Comparison, dict_of, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.stage_checks import (
    GATHER_SPAN,
    NUM_SEQS,
    NUM_TOKENS,
    by_sequence,
    require_cached,
    require_nothing_kept,
    require_tokens,
    step_ops,
    zeroed_tensors,
)
from ..exercises.tensor_checks import explain_exactly
from ..exercises.wrong import Wrong

BLOCK_SIZE = 64


# 01.2

LAYERS = {
    "you count one layer": {"num_layers *": "1 *"},
}
ZEROS, PADS, BLOCKS, CATS = "len(lengths) + 2 * shorter", "2 * shorter", "-(-n // 64)", "1 + shorter"
MISCOUNTS = {
    "zeros": {
        "a sequence shorter than the longest is padded, and its pads are zeros too": {PADS: "0"},
        "a shorter sequence has two pads, one for K and one for V": {PADS: "shorter"},
        "the longest sequence is not padded": {PADS: "2 * len(lengths)"},
        "several sequences may be as long as the longest, and none of them is padded": {PADS: "2 * (len(lengths) - 1)"},
        "only k_seq is made by zeros, v_seq is a zeros_like": {ZEROS: "2 * (len(lengths) + shorter)"},
    },
    "zeros_like": {
        "only v_seq is a zeros_like, k_seq is made by zeros": {"* len(lengths)": "* 2 * len(lengths)"},
        "pads are made by zeros": {"* len(lengths)": f"* ({ZEROS})"},
        "v_seq is made once a sequence, not once a block": {"* len(lengths)": "* blocks"},
    },
    "copy_": {
        "each block is copied for K and for V": {"2 * num_layers * blocks": "num_layers * blocks"},
        "a sequence is copied block by block, and may have several": {"* blocks": "* len(lengths)"},
        "the last block is copied too, full or not": {BLOCKS: "n // 64"},
        "a sequence that fills its last block has no block after it": {BLOCKS: "(n // 64 + 1)"},
        "a sequence copies its own blocks, not as many as the longest": {BLOCKS: "-(-max(lengths) // 64)"},
    },
    "cat": {
        "each shorter sequence is joined with its pads by a cat, too": {CATS: "1"},
        "every cat is made twice: for K and for V": {"2 * num_layers * (1": "num_layers * (1"},
        "one cat joins all sequences of a layer; only shorter sequences need more": {CATS: "len(lengths)"},
        "one more cat joins all sequences of a layer": {CATS: "shorter"},
    },
}


def _draw_step(rng: Random) -> Case:
    """Draw the lengths of a batch: some lengths occur twice, and some fill their blocks."""
    lengths = [rng.choice((rng.randint(1, 20), rng.randint(1, 150), 64, 128, 5)) for _ in range(rng.randint(1, 5))]
    return rng.randint(1, 6), lengths


register(
    "01.2",
    Comparison(
        [(1, [1]), (1, [64]), (2, [10] * 8), (12, [65, 200]), *draw(_draw_step)],
        as_solved_by_name(
            "01.2", {op: LAYERS | miscounts for op, miscounts in MISCOUNTS.items()}, call=dict_of(*MISCOUNTS)
        ),
        inputs("num_layers", "lengths"),
        dict_of(*MISCOUNTS),
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


def describe_blocks(blocks: list[Tensor], num_tokens: int, *_: Any) -> str:
    dtype = str(blocks[0].dtype).removeprefix("torch.")
    return f"num_tokens={num_tokens}, {len(blocks)} × {list(blocks[0].shape)} in {dtype}"


GATHERS: list[Case] = [
    *[(blocks_of(n, seed=seed), n) for n in (1, 63, 64, 65, 128) for seed in range(2)],  # shapes that come twice
    (blocks_of(70, dtype=torch.float64), 70),
    (blocks_of(64, dtype=torch.float16), 64),
    *draw(draw_blocks),
]
GATHER_MISTAKES = {
    "you return all slots, also the unwritten ones of the last block": {"[:, :num_tokens]": ""},
    "blocks are joined along their tokens, dimension 1": {"dim=1": "dim=0"},
    "you return the first block, and a sequence may have several": {"torch.cat(blocks, dim=1)": "blocks[0]"},
    "tokens fill the blocks from slot 0": {":num_tokens]": "-num_tokens:]"},
    "the blocks are in the order of their tokens": {"cat(blocks": "cat(blocks[::-1]"},
}

register(
    "01.1",
    Comparison(GATHERS, as_solved("01.1", GATHER_MISTAKES, explain_exactly, torch=torch), describe_blocks),
)


# 01.3


@exercise("01.3")
def no_zeros(answer: type[Stage], model: Model) -> None:
    require_cached(answer, by_sequence)
    require_tokens(answer, model)
    require_nothing_kept(answer, model)
    for num_tokens in (NUM_TOKENS, BLOCK_SIZE, BLOCK_SIZE + NUM_TOKENS, 2 * BLOCK_SIZE + NUM_TOKENS):
        if zeroed := zeroed_tensors(step_ops(answer, model, GATHER_SPAN, [num_tokens] * NUM_SEQS)):
            raise Wrong(
                f"the tokens are right, but with {num_tokens} tokens a sequence the gather still makes {zeroed} zeroed "
                "tensors a step; the budget is 0"
            )
