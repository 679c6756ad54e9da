"""Checkers of lesson 01: count the naive gather, write it, then make it without a single zeroed tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.stage import Stage

from .exercise import Wrong, exercise
from .explain import explain_number, explain_tensor
from .stage_checks import GATHER_SPAN, by_sequence, require_cached, require_tokens, step_ops, zeroed_tensors

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
    for what, lengths in (
        ("equal lengths", [10] * 8),
        ("one block each, mixed", [3, 9, 9, 1]),
        ("several blocks", [65, 200]),
    ):
        want = naive_gather_ops(12, lengths)
        got = answer(12, list(lengths))
        if not isinstance(got, dict) or set(got) != set(want):
            raise Wrong(f"expected a dict with the keys {sorted(want)}, got {got!r}")
        mistakes = _miscounts(12, lengths)
        for op, n in want.items():
            if message := explain_number(got[op], n, mistakes=mistakes[op] | {n // 12: "that is one layer"}):
                raise Wrong(f"{what}, 12 layers, lengths {lengths}: {op}: {message}")


def _miscounts(num_layers: int, lengths: list[int]) -> dict[str, dict[int, str]]:
    """Op -> a likely wrong count -> how one comes by it."""
    num_seqs, shorter = len(lengths), sum(n < max(lengths) for n in lengths)
    blocks, full_blocks = sum(-(-n // BLOCK_SIZE) for n in lengths), sum(n // BLOCK_SIZE for n in lengths)
    counts: dict[str, dict[int, str]] = {
        "zeros": {
            num_seqs: "a sequence shorter than the longest is padded, and its pads are zeros too",
            num_seqs + shorter: "a shorter sequence has two pads, one for K and one for V",
            3 * num_seqs: "the longest sequence is not padded",
            2 * (num_seqs + shorter): "only k_seq is made by zeros, v_seq is a zeros_like",
        },
        "zeros_like": {
            2 * num_seqs: "only v_seq is a zeros_like, k_seq is made by zeros",
            num_seqs + 2 * shorter: "pads are made by zeros",
        },
        "copy_": {
            blocks: "each block is copied for K and for V",
            2 * num_seqs: "a sequence is copied block by block, and may have several",
            2 * full_blocks: "the last block is copied too, full or not",
            2 * sum(lengths): "a block is copied at once, not token by token",
        },
        "cat": {
            2: "each shorter sequence is put together with its pads by a cat, too",
            2 + shorter: "a shorter sequence has a cat for K and one for V",
            1 + shorter: "every cat is made twice: for K and for V",
            2 * num_seqs: "one cat takes all sequences of a layer; besides it only shorter ones make some",
        },
    }
    return {op: {num_layers * n: why for n, why in known.items()} for op, known in counts.items()}


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
        "torch.cat(blocks, dim=1) puts all slots behind one another.",
        "Cut to the first num_tokens slots, then add the leading dimension with unsqueeze(0).",
    ),
)
def gather(answer: Callable[[list[Tensor], int], Tensor]) -> None:
    for num_tokens in (5, 64, 65, 150):
        generator = torch.Generator().manual_seed(num_tokens)
        blocks = [torch.randn(3, BLOCK_SIZE, 4, generator=generator) for _ in range(-(-num_tokens // BLOCK_SIZE))]
        want = torch.cat(blocks, dim=1)[:, :num_tokens].unsqueeze(0)
        given = [block.clone() for block in blocks]
        got = answer(given, num_tokens)
        require_unchanged(given, blocks)
        if message := _misplaced(got, blocks, num_tokens) or explain_tensor(got, want):
            raise Wrong(f"num_tokens={num_tokens}: {message}")


def require_unchanged(given: list[Tensor], blocks: list[Tensor]) -> None:
    """given: what an answer was handed, equal to `blocks` before."""
    if len(given) != len(blocks) or not all(map(torch.equal, given, blocks)):
        raise Wrong("blocks has changed: it is the cache, which the next step reads again")


def _misplaced(got: Tensor, blocks: list[Tensor], num_tokens: int) -> str:
    if not torch.is_tensor(got) or got.dim() != 4:
        return ""
    heads, slots, _ = blocks[0].shape
    if got.size(2) == len(blocks) * slots > num_tokens:
        return f"you return {got.size(2)} slots, the unwritten ones of the last block too"
    if len(blocks) > 1 and got.size(1) == heads * len(blocks):
        return f"you return {got.size(1)} heads: blocks follow one another along their tokens, dimension 1"
    if len(blocks) > 1 and got.size(2) == num_tokens // slots * slots:
        return f"you return {got.size(2)} tokens: the last block counts, full or not"
    return ""


@exercise(
    "01.3",
    title="A gather without zeros",
    minutes=20,
    difficulty=2,
    importance=3,
    stub="class NoZeros(NaiveCat): ...",
    task="Subclass `NaiveCat` and override `gather_sequence` so that a step of equally long "
    "sequences makes no zeroed tensor at all. Tokens must stay equal to the reference.",
    hints=(
        "Filling with zeros is wasted when every slot is written afterwards.",
        "self.filled_blocks(seq, layer, seq.num_cached_tokens) yields (start, end, (k_block, v_block)).",
        "Collect the views k_block[:, : end - start] in a list and cat them along dim 1; unsqueeze(0) at the end.",
    ),
)
def no_zeros(answer: type[Stage], model: Model) -> None:
    require_cached(answer, model, by_sequence)
    require_tokens(answer, model)
    if zeroed := zeroed_tensors(step_ops(answer, model, GATHER_SPAN)):
        raise Wrong(f"the tokens are right, but the gather still makes {zeroed} zeroed tensors a step; the budget is 0")
