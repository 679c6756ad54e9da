"""Checkers of lesson 02: what padding costs, the gather in place, and one allocation for all layers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.generate import begin
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved_by_name
from ..exercises.drawn import Case, Comparison, draw, values_of
from ..exercises.exercise import exercise, register
from ..exercises.solutions import solution
from ..exercises.stage_checks import (
    GATHER_SPAN,
    NUM_SEQS,
    NUM_TOKENS,
    by_batch,
    cached_in,
    require_cached,
    require_nothing_kept,
    require_tokens,
    stage_on_copy,
    step_of,
    step_ops,
    zeroed_tensors,
)
from ..exercises.tensor_checks import explain_exactly
from ..exercises.wrong import Wrong
from ..lesson00.exercises import SHAPE_MISTAKES, describe_shape, draw_shape, draw_width, on_shape
from ..lesson01.exercises import blocks_of, describe_blocks, draw_blocks

# 02.3

USEFUL, ROW, PADDED = "sum(lengths)", "max(lengths)", "len(lengths) * max(lengths)"
PADDING_MISTAKES = {
    "useful": {
        "you count the padded batch; the pair begins with the cached tokens": {USEFUL: PADDED},
        "slots that hold no token are not gathered": {USEFUL: "64 * sum(-(-n // 64) for n in lengths)"},
        "the new token is not cached yet": {USEFUL: f"({USEFUL} + len(lengths))"},
        "you count one row, the batch has one per sequence": {USEFUL: ROW},
    },
    "padded": {
        "you count the cached tokens; every row is as long as the longest": {PADDED: USEFUL},
        "the new token is not in the gathered batch, attention appends it": {ROW: f"({ROW} + 1)"},
        "you count one row, the batch has one per sequence": {PADDED: ROW},
        "a row is as long as the longest sequence, not as its blocks": {ROW: f"64 * -(-{ROW} // 64)"},
    },
}


def _on_padding(answer: Callable[..., Any], *case: Any) -> dict[str, Any]:
    return values_of(*PADDING_MISTAKES)(partial(on_shape, answer), *case)


def _draw_padding(rng: Random) -> Case:
    return *draw_shape(rng), [rng.randint(1, 90) for _ in range(rng.randint(1, 4))], draw_width(rng)


register(
    "02.3",
    Comparison(
        [(1, 1, 1, 1, [1], 1), (2, 2, 1, 2, [1, 1, 500], 4), (1, 1, 1, 2, [10, 10], 4), *draw(_draw_padding)],
        as_solved_by_name(
            "02.3", {name: mistakes | SHAPE_MISTAKES for name, mistakes in PADDING_MISTAKES.items()}, call=_on_padding
        ),
        describe_shape("lengths"),
        _on_padding,
    ),
)


# 02.1


def _row(blocks: list[Tensor], num_tokens: int, room: int) -> Case:
    """Make a case: blocks, the number of their tokens, and a tensor `out` with `room` more slots than tokens.

    `out` is cut from a wider tensor, so its heads do not lie side by side in memory.
    """
    heads, _, dim = blocks[0].shape
    wide = torch.full((heads, num_tokens + room + 1, dim), 9.0, dtype=blocks[0].dtype)
    return blocks, num_tokens, wide[:, :-1]


ROWS: list[Case] = [
    *[_row(blocks_of(n, seed=room), n, room) for n in (1, 63, 64, 65, 128) for room in (0, 1, 100)],
    _row(blocks_of(70, dtype=torch.float64), 70, 7),
    *draw(lambda rng: _row(*draw_blocks(rng), rng.randint(0, 80))),
]


def _describe_row(blocks: list[Tensor], num_tokens: int, out: Tensor) -> str:
    return f"{describe_blocks(blocks, num_tokens)}, out {list(out.shape)}"


def _gather_into(answer: Callable[..., Any], blocks: list[Tensor], num_tokens: int, out: Tensor) -> dict[str, Any]:
    """Return what is in out after the call, and what it took."""
    before, out = out, deepcopy(out)
    version, returned = out._version, list[Any]()
    moved = bytes_copied(lambda: returned.append(answer(blocks, num_tokens, out)))
    if torch.equal(out, before):
        raise Wrong("out was not changed: write into it with out[...] = ...; assigning to the name does nothing")
    if not torch.equal(out[:, num_tokens:], before[:, num_tokens:]):
        raise Wrong(f"out[:, {num_tokens}:] was overwritten: it is padding")
    if returned != [None]:
        raise Wrong(f"you return a {type(returned[0]).__name__}: the caller has out, return nothing")
    effort = {"writes into out": out._version - version, "bytes written": moved.copied + moved.filled}
    return {"out": out[:, :num_tokens], **effort}


def _explain_gather(got: Any, want: Any) -> str | None:
    if isinstance(want, Tensor):
        return explain_exactly(got, want)
    if not got:
        return "none by torch: write to out itself, not through NumPy"
    return (
        f"{got}, the budget is {want}: write each block into out once, and to no other tensor" if got > want else None
    )


FILLED = {
    "out": {
        "the blocks are in the order of their tokens": {"enumerate(blocks)": "enumerate(blocks[::-1])"},
    },
    "writes into out": {},
    "bytes written": {},
}

register(
    "02.1",
    Comparison(ROWS, as_solved_by_name("02.1", FILLED, _explain_gather, _gather_into), _describe_row, _gather_into),
)


# 02.2


@exercise("02.2")
def one_allocation(answer: type[Stage], model: Model) -> None:
    require_cached(answer, by_batch)
    require_tokens(answer, model)
    require_nothing_kept(answer, model)
    for lengths in STEPS:
        _require_one_tensor(answer, model, lengths)


STEPS = ([NUM_TOKENS] * NUM_SEQS, [3, 70, 9], [9] * 11)  # prompts


def _require_one_tensor(answer: type[Stage], model: Model, lengths: list[int]) -> None:
    """Raise Wrong unless K and V of all layers lie in one tensor, which is zeroed once and no larger than they are."""
    batch = f"with {cached_in(lengths)} tokens cached"
    zeroed = zeroed_tensors(step_ops(answer, model, GATHER_SPAN, lengths))
    if zeroed > 1 and len(set(lengths)) == 1:  # where lengths differ, each sequence's pads may be zeroed on their own
        raise Wrong(
            f"the tokens are right, but {batch} the gather makes {zeroed} zeroed tensors a step; the budget is 1"
        )
    padded = solution("00.3")(model.config, len(lengths) * max(lengths), model.dtype.itemsize)
    if (filled := bytes_copied(step_of(answer, model, lengths)).filled) > padded:
        raise Wrong(
            f"the tokens are right, but {batch} {filled:,} bytes are filled with zeros, and K and V of all layers are "
            f"{padded:,}"
        )
    stage: Any = stage_on_copy(answer, model, num_blocks=2 * len(lengths))
    seqs = begin(stage, [[3 + i] * n for i, n in enumerate(lengths)], SamplingParams())
    past = stage.build_batched_past(seqs, max(lengths))
    if (made := len({tensor.untyped_storage().data_ptr() for pair in past for tensor in pair})) > 1:
        raise Wrong(
            f"the tokens are right, but {batch} K and V of {model.config.num_layers} layers lie in {made} tensors; the "
            "budget is 1, of which each layer's k and v are views"
        )
