"""Checkers of lesson 02: what padding costs, the gather in place, and one allocation for all layers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roseinfer.models import Model, ModelConfig
from roseinfer.profiling import bytes_copied
from roseinfer.stage import Stage

from .drawn import Case, Expected, compare, draw, require_all, values_of
from .exercise import Wrong, exercise
from .explain import explain_tensor
from .lesson00 import Cache, draw_cache
from .lesson01 import BLOCK_SIZE, blocks_of, describe_blocks, draw_blocks, on_blocks
from .stage_checks import (
    GATHER_SPAN,
    NUM_SEQS,
    NUM_TOKENS,
    by_batch,
    equal_step,
    require_cached,
    require_nothing_kept,
    require_tokens,
    step_ops,
    zeroed_tensors,
)


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
    shapes: dict[str, Callable[[Cache], Cache]] = {
        "K and V are both gathered": lambda c: c._replace(head_dim=c.head_dim / 2),
        "that is one layer": lambda c: c._replace(layers=1),
        "those are values, not bytes": lambda c: c._replace(width=1),
        "query heads are not cached: count num_kv_heads": lambda c: c._replace(kv_heads=c.heads),
        "that is one head, num_kv_heads of them are cached": lambda c: c._replace(kv_heads=1),
        "a value does not always take so many bytes, bytes_per_value says it": lambda c: c._replace(width=4),
    }

    def bytes_of(tokens: Callable[[list[int]], float], shape: Callable[[Cache], Cache] = lambda c: c) -> Callable:
        return lambda *case: shape(Cache(*case[:4], tokens(case[4]), case[5])).nbytes

    def expected(tokens: Callable[[list[int]], int], mistaken: dict[str, Callable[[list[int]], float]]) -> Expected:
        mistakes = {why: bytes_of(wrong) for why, wrong in mistaken.items()}
        return Expected(bytes_of(tokens), mistakes | {why: bytes_of(tokens, wrong) for why, wrong in shapes.items()})

    def padded(lengths: list[int]) -> int:
        return len(lengths) * max(lengths)

    compare(
        answer,
        [
            (1, 1, 1, 1, [1], 1), (2, 2, 1, 2, [1, 1, 500], 4), (1, 1, 1, 2, [10, 10], 4), (3, 6, 3, 2, [64, 7], 2),
            *draw(_draw_padding),
        ],
        {"useful": expected(sum, MISTAKEN_USEFUL), "padded": expected(padded, MISTAKEN_PADDED)},
        lambda *case: (
            f"num_layers={case[0]}, num_heads={case[1]}, num_kv_heads={case[2]}, head_dim={case[3]}, "
            f"lengths={case[4]}, bytes_per_value={case[5]}"
        ),
        lambda answer, *case: values_of("useful", "padded")(answer, Cache(*case[:4], 1, 1).config, *case[4:]),
    )  # fmt: skip


def _draw_padding(rng: Random) -> Case:
    *shape, _, width = draw_cache(rng)
    return (*shape, [rng.randint(1, 90) for _ in range(rng.randint(1, 4))], width)


MISTAKEN_USEFUL: dict[str, Callable[[list[int]], float]] = {  # lengths -> tokens
    "those are the padded ones; the pair begins with the useful ones": lambda n: len(n) * max(n),
    "slots that hold no token are not gathered": lambda n: BLOCK_SIZE * sum(-(-x // BLOCK_SIZE) for x in n),
    "the new token is not cached yet": lambda n: sum(n) + len(n),
    "that is one row, the batch has one for each sequence": max,
}
MISTAKEN_PADDED: dict[str, Callable[[list[int]], float]] = {
    "those are the useful ones: every row is as long as the longest": sum,
    "the new token is not in the gathered batch, attention puts it behind": lambda n: len(n) * (max(n) + 1),
    "that is one row, the batch has one for each sequence": max,
    "a row is as long as the longest sequence, not as its blocks": (
        lambda n: len(n) * BLOCK_SIZE * -(-max(n) // BLOCK_SIZE)
    ),
    "that is the padding alone; the whole batch has the tokens, too": lambda n: len(n) * max(n) - sum(n),
}


@exercise(
    "02.2",
    title="Gather into a row",
    minutes=10,
    difficulty=2,
    importance=3,
    stub="def gather_into(blocks, num_tokens, out): ...",
    task="Copy the first `num_tokens` tokens of `blocks` (each [H, 64, D]) to the front of "
    "`out` [H, T, D], in place, with one write for each block. What lies behind them in `out` must not change. "
    "Nothing is returned, and no tensor but `out` is written.",
    hints=(
        "out = ... gives the name to another tensor; out[...] = ... writes into the one you were given.",
        "Block i holds the tokens i * 64 up to min((i + 1) * 64, num_tokens).",
        "Block i goes to those tokens of out, and only its own first ones are tokens.",
    ),
)
def gather_into(answer: Callable[[list[Tensor], int, Tensor], None]) -> None:
    def right(blocks: list[Tensor], num_tokens: int, out: Tensor) -> Tensor:
        return torch.cat([torch.cat(blocks, dim=1)[:, :num_tokens], out[:, num_tokens:]], dim=1)

    in_another_order = {"the blocks are in the order of their tokens": lambda blocks, *row: right(blocks[::-1], *row)}

    def require_one_write_a_block(blocks: list[Tensor], num_tokens: int, out: Tensor) -> None:
        with _Writes(out, blocks) as writes:
            answer(blocks, num_tokens, out)
        if writes.made:
            raise Wrong(
                f"the values are right, but {writes.made[0]} makes another tensor, and its values are copied twice: "
                "write each block into out"
            )
        if (too_many := writes.into_out - len(blocks)) > 0:
            raise Wrong(
                f"the values are right, but {too_many} writes into out too many ({writes.into_out}, the budget is "
                f"{len(blocks)}, one a block)"
            )

    compare(answer, ROWS, Expected(right, in_another_order, explain_tensor), _describe_row, _gathered_into)
    require_all(ROWS, require_one_write_a_block, _describe_row)


def _row(blocks: list[Tensor], num_tokens: int, room: int) -> Case:
    """room: tokens of `out` behind those of the sequence."""
    heads, _, dim = blocks[0].shape
    return blocks, num_tokens, torch.full((heads, num_tokens + room, dim), 9.0, dtype=blocks[0].dtype)


ROWS: list[Case] = [
    *[_row(blocks_of(n), n, room) for n in (1, 5, 63, 64, 65, 128) for room in (0, 1, 100)],
    _row(blocks_of(70, dtype=torch.float64), 70, 7), *draw(lambda rng: _row(*draw_blocks(rng), rng.randint(0, 80))),
]  # fmt: skip


def _describe_row(blocks: list[Tensor], num_tokens: int, out: Tensor) -> str:
    return f"{describe_blocks(blocks, num_tokens)}, out {list(out.shape)}"


def _gathered_into(answer: Callable[..., None], blocks: list[Tensor], num_tokens: int, out: Tensor) -> Tensor:
    """out behind the call, once it is known what was written of it."""
    before = out.clone()
    on_blocks(answer, blocks, num_tokens, out)
    if torch.equal(out, before):
        raise Wrong("out was not changed: write into it with out[...] = ..., assigning to the name does nothing")
    if not torch.equal(out[:, num_tokens:], before[:, num_tokens:]):
        raise Wrong(f"out[:, {num_tokens}:] was overwritten, it belongs to the padding")
    if same := [i for i in range(num_tokens) if torch.equal(out[:, i], before[:, i])]:
        raise Wrong(f"{len(same)} of {num_tokens} tokens were not written, the first is out[:, {same[0]}]")
    return out


class _Writes(TorchDispatchMode):
    """Counts the operations that write into `out`, and names those that make other tensors of values."""

    def __init__(self, out: Tensor, blocks: list[Tensor]) -> None:
        super().__init__()
        self.out, *given = (tensor.untyped_storage().data_ptr() for tensor in (out, *blocks))
        self.given = {self.out, *given}
        self.into_out = 0
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            self.into_out += args[0].untyped_storage().data_ptr() == self.out
        elif torch.is_tensor(result) and result.is_floating_point():
            if result.untyped_storage().data_ptr() not in self.given:
                self.made.append(func.overloadpacket.__name__)
        return result


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
        "A layer's k and v are views of that tensor, and gather_sequence_into writes into any row it is given.",
    ),
)
def one_allocation(answer: type[Stage], model: Model) -> None:
    require_cached(answer, by_batch)
    require_tokens(answer, model)
    require_nothing_kept(answer, model)
    if (zeroed := zeroed_tensors(step_ops(answer, model, GATHER_SPAN))) > 1:
        raise Wrong(f"the tokens are right, but the gather makes {zeroed} zeroed tensors a step; the budget is 1")
    c = model.config
    cached = Cache(c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, NUM_SEQS * NUM_TOKENS, model.dtype.itemsize)
    if (filled := bytes_copied(equal_step(answer, model, NUM_SEQS, NUM_TOKENS)).filled) > cached.nbytes:
        raise Wrong(
            f"the tokens are right, but {filled:,} bytes are filled with zeros, and K and V of all layers are "
            f"{cached.nbytes:,}"
        )
