"""Checkers of lesson 02: what padding costs, the gather in place, and one allocation for all layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from roseinfer.models import Model, ModelConfig
from roseinfer.profiling import count_ops
from roseinfer.stage import Stage

from ..exercise import Wrong, exercise
from ..explain import explain_tensor
from .lesson00 import SHAPE
from .lesson01 import BLOCK_SIZE
from .stage_checks import GATHER_SPAN, require_tokens, step_ops


@exercise(
    "02.1",
    title="What the padding costs",
    minutes=5,
    difficulty=1,
    task="The gathered batch is [B, H_kv, T, D] for K and for V in every layer, T being the longest length. Return "
    "the pair (bytes of cached tokens, bytes of the whole padded batch).",
    hints=(
        "One token takes 2 × num_layers × num_kv_heads × head_dim × bytes_per_value.",
        "The useful tokens are sum(lengths).",
        "The padded batch holds len(lengths) × max(lengths) tokens.",
    ),
)
def padding(answer: Callable[[ModelConfig, list[int], int], tuple[int, int]]) -> None:
    for lengths in ([10, 10], [1, 1, 1, 500], [64]):
        token = 2 * SHAPE.num_layers * SHAPE.num_kv_heads * SHAPE.head_dim * 4
        want = (token * sum(lengths), token * len(lengths) * max(lengths))
        got = answer(SHAPE, list(lengths), 4)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong(f"expected a pair (useful, padded), got {got!r}")
        for name, mine, theirs in zip(("useful", "padded"), want, got, strict=True):
            if theirs * 2 == mine:
                raise Wrong(f"lengths {lengths}: {name} is half of {mine}: K and V are both gathered")
            if theirs != mine:
                raise Wrong(f"lengths {lengths}: {name} is {mine} bytes, you have {theirs}")


@exercise(
    "02.2",
    title="Gather into a row",
    minutes=10,
    difficulty=2,
    task="Copy the first `num_tokens` tokens of `blocks` (each [H, 64, D]) to the front of "
    "`out` [H, T, D], in place. What lies behind them in `out` must not change. Nothing is "
    "returned, and no tensor but `out` is written.",
    hints=(
        "out = ... gives the name to another tensor; out[...] = ... writes into the one you were given.",
        "Block i holds the tokens i * 64 up to min((i + 1) * 64, num_tokens).",
        "out[:, start:end] = block[:, : end - start] for each block.",
    ),
)
def gather_into(answer: Callable[[list[Tensor], int, Tensor], None]) -> None:
    for num_tokens in (5, 64, 70):
        generator = torch.Generator().manual_seed(num_tokens)
        blocks = [torch.randn(3, BLOCK_SIZE, 4, generator=generator) for _ in range(-(-num_tokens // BLOCK_SIZE))]
        out = torch.full((3, num_tokens + 7, 4), 9.0)
        want = out.clone()
        want[:, :num_tokens] = torch.cat(blocks, dim=1)[:, :num_tokens]
        untouched = out.clone()
        ops = count_ops(lambda blocks=blocks, n=num_tokens, out=out: answer(blocks, n, out))
        if torch.equal(out, untouched):
            raise Wrong("out was not changed: write into it with out[...] = ..., assigning to the name does nothing")
        if not torch.equal(out[:, num_tokens:], untouched[:, num_tokens:]):
            raise Wrong(f"num_tokens={num_tokens}: out[:, {num_tokens}:] was overwritten, it belongs to the padding")
        if message := explain_tensor(out, want):
            raise Wrong(f"num_tokens={num_tokens}: {message}")
        if ops["aten::cat"]:
            raise Wrong("the values are right, but a cat copies everything once more: write each block into out")
        if ops["aten::copy_"] > len(blocks):
            raise Wrong(
                f"the values are right with {ops['aten::copy_']} copies, the budget is {len(blocks)}, one a block"
            )


@exercise(
    "02.3",
    title="One allocation for all layers",
    minutes=20,
    difficulty=3,
    task="Subclass `PreallocGather` so that a step makes one zeroed tensor in all, for K and V of every "
    "layer together. Tokens must stay equal to the reference. (Why must it be zeroed at all? Try torch.empty.)",
    hints=(
        "Override build_batched_past; it returns a list of (k, v), one pair a layer.",
        "One tensor [num_layers, 2, B, H_kv, T, D] can be cut into all of those pairs.",
        "batch[layer].unbind(0) gives the k and v of a layer as views; gather_sequence_into does the rest.",
    ),
)
def one_allocation(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    ops = step_ops(answer, model, GATHER_SPAN)
    zeroed = ops["aten::zero_"]  # every way to make a zeroed tensor ends in one
    if zeroed > 1:
        raise Wrong(f"the tokens are right, but the gather makes {zeroed} zeroed tensors a step; the budget is 1")
    if ops["aten::empty"] + ops["aten::empty_strided"] > zeroed:
        raise Wrong("an empty tensor may hold NaN, and 0 × NaN is NaN: masked slots must hold finite values")
