"""Checkers of lesson 02: what padding costs, the gather in place, and one allocation for all layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from roseinfer.models import Model, ModelConfig
from roseinfer.profiling import count_ops
from roseinfer.stage import Stage

from .exercise import Wrong, exercise
from .explain import explain_number, explain_tensor
from .lesson00 import SHAPE
from .lesson01 import BLOCK_SIZE, require_unchanged
from .stage_checks import GATHER_SPAN, by_batch, require_cached, require_tokens, step_ops, zeroed_tensors


@exercise(
    "02.1",
    title="What the padding costs",
    minutes=5,
    difficulty=1,
    importance=4,
    stub="def padding(config, lengths, bytes_per_value): ...",
    task="The gathered batch is [B, H_kv, T, D] for K and for V in every layer, T being the longest length. Return "
    "the pair (bytes of cached tokens, bytes of the whole padded batch).",
    hints=(
        "One token takes 2 × num_layers × num_kv_heads × head_dim × bytes_per_value.",
        "The useful tokens are sum(lengths).",
        "The padded batch holds len(lengths) × max(lengths) tokens.",
    ),
)
def padding(answer: Callable[[ModelConfig, list[int], int], tuple[int, int]]) -> None:
    cases = ((SHAPE, [1, 1, 500], 4), (SHAPE, [10, 10], 4), (replace(SHAPE, num_kv_heads=3), [64, 7], 2))
    for config, lengths, width in cases:
        token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * width
        tokens, rows, longest = sum(lengths), len(lengths), max(lengths)
        got = answer(config, list(lengths), width)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong(f"expected a pair (useful, padded), got {got!r}")
        if got == (token * rows * longest, token * tokens) != (token * tokens, token * rows * longest):
            raise Wrong("the pair is the wrong way round: first the useful bytes, then the padded ones")
        blocks = sum(-(-n // BLOCK_SIZE) for n in lengths)
        slots = {token * BLOCK_SIZE * blocks: "slots that hold no token are not gathered"}
        rests = {
            token * tokens: "those are the useful ones: every row is as long as the longest",
            token * rows * (longest + 1): "the new token is not in the gathered batch, attention puts it behind",
            token * longest: "that is one row, the batch has one for each sequence",
        }
        where = f"lengths {lengths}, {config.num_kv_heads} KV heads, {width} bytes a value"
        for name, want, theirs, own in zip(
            ("useful", "padded"), (token * tokens, token * rows * longest), got, (slots, rests), strict=True
        ):
            mistakes = own | _bytes_mistaken(config, want, width)
            if message := explain_number(theirs, want, mistakes=mistakes):
                raise Wrong(f"{where}: {name}: {message}")


def _bytes_mistaken(config: ModelConfig, want: int, width: int) -> dict[int, str]:
    return {
        want // 2: "K and V are both gathered",
        want // config.num_layers: "that is one layer",
        want // width: "those are values, not bytes",
        want * config.num_heads // config.num_kv_heads: "query heads are not cached: count num_kv_heads",
    }


@exercise(
    "02.2",
    title="Gather into a row",
    minutes=10,
    difficulty=2,
    importance=3,
    stub="def gather_into(blocks, num_tokens, out): ...",
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
        untouched, want = out.clone(), out.clone()
        want[:, :num_tokens] = torch.cat(blocks, dim=1)[:, :num_tokens]
        given = [block.clone() for block in blocks]
        ops = count_ops(lambda blocks=given, n=num_tokens, out=out: answer(blocks, n, out))
        require_unchanged(given, blocks)
        if torch.equal(out, untouched):
            raise Wrong("out was not changed: write into it with out[...] = ..., assigning to the name does nothing")
        if not torch.equal(out[:, num_tokens:], untouched[:, num_tokens:]):
            raise Wrong(f"num_tokens={num_tokens}: out[:, {num_tokens}:] was overwritten, it belongs to the padding")
        if message := _unwritten(out, untouched, num_tokens) or explain_tensor(out, want):
            raise Wrong(f"num_tokens={num_tokens}: {message}")
        if ops["aten::cat"]:
            raise Wrong("the values are right, but a cat copies everything once more: write each block into out")
        if (too_many := ops["aten::copy_"] - len(blocks)) > 0:
            raise Wrong(
                f"num_tokens={num_tokens}: the values are right, but {too_many} copies too many "
                f"({ops['aten::copy_']}, the budget is {len(blocks)}, one a block)"
            )


def _unwritten(out: Tensor, untouched: Tensor, num_tokens: int) -> str:
    """Which tokens still are what they were."""
    same = [i for i in range(num_tokens) if torch.equal(out[:, i], untouched[:, i])]
    if not same:
        return ""
    return f"{len(same)} of {num_tokens} tokens were not written, the first is out[:, {same[0]}]"


@exercise(
    "02.3",
    title="One allocation for all layers",
    minutes=20,
    difficulty=3,
    importance=2,
    stub="class OneAllocation(PreallocGather): ...",
    task="Subclass `PreallocGather` so that a step makes one zeroed tensor in all, for K and V of every "
    "layer together. Tokens must stay equal to the reference. (Why must it be zeroed at all? Try torch.empty.)",
    hints=(
        "Override build_batched_past; it returns a list of (k, v), one pair a layer.",
        "One tensor [num_layers, 2, B, H_kv, T, D] can be cut into all of those pairs.",
        "batch[layer].unbind(0) gives the k and v of a layer as views; gather_sequence_into does the rest.",
    ),
)
def one_allocation(answer: type[Stage], model: Model) -> None:
    require_cached(answer, model, by_batch)
    require_tokens(answer, model)
    ops = step_ops(answer, model, GATHER_SPAN)
    zeroed = zeroed_tensors(ops)
    if zeroed > 1:
        raise Wrong(f"the tokens are right, but the gather makes {zeroed} zeroed tensors a step; the budget is 1")
    if ops["aten::empty"] + ops["aten::empty_strided"] > zeroed:
        raise Wrong("an empty tensor may hold NaN, and 0 × NaN is NaN: masked slots must hold finite values")
