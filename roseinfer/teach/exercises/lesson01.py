"""Checkers of lesson 01: count the naive gather, write it, then make it without a single zeroed tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.stage import Stage

from ..exercise import Wrong, exercise
from ..explain import explain_tensor
from .stage_checks import GATHER_SPAN, require_tokens, step_ops

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
    task="Return how many `zeros`, `zeros_like`, `copy_` and `cat` the "
    "gather of one decode step makes, for any number of layers and any cached lengths (blocks of 64 tokens).",
    hints=(
        "Read gather_sequence and build_batched_past line by line: which line runs how often?",
        "A sequence of n tokens lies in ceil(n / 64) blocks, and each is copied once for K and once for V.",
        "Each (layer, sequence shorter than the longest) adds two zeros, the pads, and two cats.",
    ),
)
def count_gather(answer: Callable[[int, list[int]], dict[str, int]]) -> None:
    for what, lengths in (
        ("equal lengths", [10] * 8),
        ("one block each, mixed", [3, 9, 9, 1]),
        ("several blocks", [65, 200]),
    ):
        want = naive_gather_ops(12, lengths)
        got = answer(12, list(lengths))
        if not isinstance(got, dict) or set(got) != set(want):
            raise Wrong(f"expected a dict with the keys {sorted(want)}, got {got!r}")
        for op, n in want.items():
            if got[op] != n:
                raise Wrong(f"{what}, 12 layers, lengths {lengths}: {op} is {n}, you have {got[op]}")


@exercise(
    "01.2",
    title="Gather one sequence",
    minutes=15,
    difficulty=2,
    task="`blocks` is a list of tensors [H, 64, D]; the sequence's `num_tokens` tokens fill "
    "them from the front, the last one perhaps in part. Return the tokens as one tensor [1, H, num_tokens, D].",
    hints=(
        "The token dimension of a block is dimension 1. What lies behind the last token is not yours.",
        "torch.cat(blocks, dim=1) puts all slots behind one another.",
        "Cut to the first num_tokens slots, then add the leading dimension with unsqueeze(0).",
    ),
)
def gather(answer: Callable[[list[Tensor], int], Tensor]) -> None:
    for num_tokens in (5, 64, 65, 150):
        generator = torch.Generator().manual_seed(num_tokens)
        blocks = [torch.randn(3, BLOCK_SIZE, 4, generator=generator) for _ in range(-(-num_tokens // BLOCK_SIZE))]
        want = torch.cat(blocks, dim=1)[:, :num_tokens].unsqueeze(0)
        got = answer(blocks, num_tokens)
        if torch.is_tensor(got) and got.dim() == 4 and got.size(2) == len(blocks) * BLOCK_SIZE > num_tokens:
            raise Wrong(
                f"num_tokens={num_tokens}: you return {got.size(2)} slots, the unwritten ones of the last block too"
            )
        if message := explain_tensor(got, want):
            raise Wrong(f"num_tokens={num_tokens}: {message}")


@exercise(
    "01.3",
    title="A gather without zeros",
    minutes=20,
    difficulty=2,
    task="Subclass `NaiveCat` and override `gather_sequence` so that a step of equally long "
    "sequences makes no zeroed tensor at all. Tokens must stay equal to the reference.",
    hints=(
        "Filling with zeros is wasted when every slot is written afterwards.",
        "self.filled_blocks(seq, layer, seq.num_cached_tokens) yields (start, end, (k_block, v_block)).",
        "Collect the views k_block[:, : end - start] in a list and cat them along dim 1; unsqueeze(0) at the end.",
    ),
)
def no_zeros(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    ops = step_ops(answer, model, GATHER_SPAN)
    if zeroed := ops["aten::zero_"]:  # every way to make a zeroed tensor ends in one
        raise Wrong(f"the tokens are right, but the gather still makes {zeroed} zeroed tensors a step; the budget is 0")
