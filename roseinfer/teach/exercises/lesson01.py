"""Checkers of lesson 01: count the naive gather, write it, then make it without a single zeroed tensor."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.stage import Stage

from .drawn import Case, Expected, compare, dict_of, draw
from .exercise import Wrong, exercise
from .explain import explain_tensor
from .stage_checks import (
    GATHER_SPAN,
    NUM_TOKENS,
    by_sequence,
    require_cached,
    require_nothing_kept,
    require_tokens,
    step_ops,
    zeroed_tensors,
)

BLOCK_SIZE = 64


def naive_gather_ops(num_layers: int, lengths: list[int]) -> dict[str, int]:
    """What s01's gather costs in one step, by its code: K and V for each (layer, sequence)."""
    shorter = sum(n < max(lengths) for n in lengths)
    blocks = sum(-(-n // BLOCK_SIZE) for n in lengths)
    return {
        "zeros": num_layers * (len(lengths) + 2 * shorter),
        "zeros_like": num_layers * len(lengths),
        "copy_": 2 * num_layers * blocks,
        "cat": num_layers * (2 + 2 * shorter),
    }


@exercise(
    "01.1",
    title="Count the naive gather",
    minutes=10,
    difficulty=1,
    importance=4,
    stub="def count_gather(num_layers, lengths): ...",
    task="Return how many `zeros`, `zeros_like`, `copy_` and `cat` the "
    "gather of one decode step makes, for any number of layers and any cached lengths (blocks of 64 tokens).",
    hints=(
        "Read gather_sequence and build_batched_past line by line: which line runs how often?",
        "A sequence of n tokens lies in ceil(n / 64) blocks, and each is copied once for K and once for V.",
        "Each (layer, sequence shorter than the longest) adds two zeros, the pads, and two cats.",
    ),
)
def count_gather(answer: Callable[[int, list[int]], dict[str, int]]) -> None:
    def in_a_layer(count: Callable[[list[int]], int]) -> Callable[[int, list[int]], int]:
        return lambda num_layers, lengths: num_layers * count(lengths)

    expected = {
        op: Expected(
            lambda num_layers, lengths, op=op: naive_gather_ops(num_layers, lengths)[op],
            {
                "that is one layer": lambda _, lengths, op=op: naive_gather_ops(1, lengths)[op],
                "that is a model of 12 layers, num_layers says how many": (
                    lambda _, lengths, op=op: naive_gather_ops(12, lengths)[op]
                ),
                **{why: in_a_layer(count) for why, count in MISCOUNTS[op].items()},
            },
        )
        for op in MISCOUNTS
    }
    compare(
        answer,
        [(1, [1]), (1, [64]), (2, [10] * 8), (12, [65, 200]), (1, [63, 64, 65]), (3, [128, 128, 64]), *draw(_step)],
        expected,
        lambda num_layers, lengths: f"num_layers={num_layers}, lengths={lengths}",
        dict_of(*expected),
    )


def _step(rng: Random) -> Case:
    """Some lengths come more than once, and some fill their blocks."""
    lengths = [rng.choice((rng.randint(1, 20), rng.randint(1, 150), 64, 128, 5)) for _ in range(rng.randint(1, 5))]
    return rng.randint(1, 6), lengths


def _num_shorter(lengths: list[int]) -> int:
    return sum(n < max(lengths) for n in lengths)


MISCOUNTS: dict[str, dict[str, Callable[[list[int]], int]]] = {  # of one layer
    "zeros": {
        "a sequence shorter than the longest is padded, and its pads are zeros too": len,
        "a shorter sequence has two pads, one for K and one for V": lambda n: len(n) + _num_shorter(n),
        "the longest sequence is not padded": lambda n: 3 * len(n),
        "several sequences may be as long as the longest, and none of them is padded": lambda n: 3 * len(n) - 2,
        "only k_seq is made by zeros, v_seq is a zeros_like": lambda n: 2 * (len(n) + _num_shorter(n)),
        "k_seq is made by zeros, too; those are the pads alone": lambda n: 2 * _num_shorter(n),
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
        "a sequence that fills its last block has no other behind it": lambda n: (
            2 * sum(x // BLOCK_SIZE + 1 for x in n)
        ),
        "each sequence has a last block of its own that is not full": lambda n: 2 * -(-sum(n) // BLOCK_SIZE),
        "a sequence copies its own blocks, not as many as the longest": (
            lambda n: 2 * len(n) * -(-max(n) // BLOCK_SIZE)
        ),
        "a block is copied at once, not token by token": lambda n: 2 * sum(n),
    },
    "cat": {
        "each shorter sequence is put together with its pads by a cat, too": lambda n: 2,
        "a shorter sequence has a cat for K and one for V": lambda n: 2 + _num_shorter(n),
        "every cat is made twice: for K and for V": lambda n: 1 + _num_shorter(n),
        "one cat takes all sequences of a layer; besides it only shorter ones make some": lambda n: 2 * len(n),
        "one cat more takes all sequences of a layer": lambda n: 2 * _num_shorter(n),
        "the longest sequence has no pads to be put together with": lambda n: 2 + 2 * len(n),
    },
}


@exercise(
    "01.2",
    title="Gather one sequence",
    minutes=15,
    difficulty=2,
    importance=3,
    stub="def gather(blocks, num_tokens): ...",
    task="`blocks` is a list of tensors [H, 64, D]; the sequence's `num_tokens` tokens fill "
    "them from the front, the last one perhaps in part. Return the tokens as one tensor [1, H, num_tokens, D].",
    hints=(
        "The token dimension of a block is dimension 1. What lies behind the last token is not yours.",
        "Which function puts tensors behind one another along a dimension that is there already?",
        "Put all slots behind one another, cut what no token fills, and add the leading dimension last.",
    ),
)
def gather(answer: Callable[[list[Tensor], int], Tensor]) -> None:
    def slots(blocks: list[Tensor], num_tokens: int) -> Tensor:
        return torch.cat(blocks, dim=1).unsqueeze(0)

    expected = Expected(
        lambda blocks, num_tokens: slots(blocks, num_tokens)[:, :, :num_tokens],
        {
            "those are all slots, the unwritten ones of the last block too": slots,
            "blocks follow one another along their tokens, dimension 1": (
                lambda blocks, num_tokens: torch.cat(blocks)[None, :, :num_tokens]
            ),
            "the last block counts, full or not": (
                lambda blocks, num_tokens: slots(blocks, num_tokens)[:, :, : num_tokens // BLOCK_SIZE * BLOCK_SIZE]
            ),
            "that is the first block, its sequence may have several": (
                lambda blocks, num_tokens: blocks[0][None, :, :num_tokens]
            ),
            "tokens fill the blocks from the front": lambda *case: slots(*case)[:, :, -case[1] :],
            "the blocks are in the order of their tokens": lambda blocks, num_tokens: slots(blocks[::-1], num_tokens)[
                :, :, :num_tokens
            ],
        },
        explain_tensor,
    )
    compare(answer, GATHERS, expected, describe_blocks, on_blocks)


def blocks_of(num_tokens: int, heads: int = 3, dim: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """As many blocks [H, 64, D] as so many tokens fill, random behind them too."""
    generator = torch.Generator().manual_seed(num_tokens)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    return [torch.randn(heads, BLOCK_SIZE, dim, generator=generator, dtype=dtype) for _ in range(num_blocks)]


def draw_blocks(rng: Random) -> tuple[list[Tensor], int]:
    num_tokens = rng.choice((rng.randint(1, 64), rng.randint(1, 300), 128, 192))
    return blocks_of(num_tokens, rng.randint(2, 4), rng.randint(2, 5)), num_tokens


GATHERS: list[Case] = [
    *[(blocks_of(n), n) for n in (1, 5, 63, 64, 65, 128, 129)],
    (blocks_of(70, dtype=torch.float64), 70), (blocks_of(64, dtype=torch.float16), 64), *draw(draw_blocks),
]  # fmt: skip


def describe_blocks(blocks: list[Tensor], num_tokens: int, *_: Any) -> str:
    dtype = str(blocks[0].dtype).removeprefix("torch.")
    return f"num_tokens={num_tokens}, {len(blocks)} × {list(blocks[0].shape)} in {dtype}"


def on_blocks(answer: Callable[..., Any], blocks: list[Tensor], *arguments: Any) -> Any:
    """What the answer returns, once it is known to leave the blocks alone."""
    given = [block.clone() for block in blocks]
    got = answer(given, *arguments)
    if len(given) != len(blocks) or not all(map(torch.equal, given, blocks)):
        raise Wrong("blocks has changed: it is the cache, which the next step reads again")
    return got


@exercise(
    "01.3",
    title="A gather without zeros",
    minutes=20,
    difficulty=2,
    importance=3,
    stub="class NoZeros(NaiveCat): ...",
    task="Subclass `NaiveCat` and override `gather_sequence` so that a step of equally long "
    "sequences makes no zeroed tensor at all. Tokens must stay equal to the reference, and no batch is kept behind.",
    hints=(
        "Filling with zeros is wasted when every slot is written afterwards.",
        "self.filled_blocks(seq, layer, seq.num_cached_tokens) yields (start, end, (k_block, v_block)).",
        "What exercise 01.2 did with blocks works here, for K and for V. A block's first end - start slots are the "
        "sequence's.",
    ),
)
def no_zeros(answer: type[Stage], model: Model) -> None:
    require_cached(answer, by_sequence)
    require_tokens(answer, model)
    require_nothing_kept(answer, model)
    for num_tokens in (NUM_TOKENS, BLOCK_SIZE + NUM_TOKENS):
        if zeroed := zeroed_tensors(step_ops(answer, model, GATHER_SPAN, num_tokens)):
            raise Wrong(
                f"the tokens are right, but with {num_tokens} tokens a sequence the gather still makes {zeroed} zeroed "
                "tensors a step; the budget is 0"
            )
