"""Checkers of lesson 02: what padding costs, the gather in place, and one allocation for all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roseinfer.generate import begin
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..exercises.drawn import Case, Comparison, Expected, draw, require_all, values_of
from ..exercises.exercise import exercise, register
from ..exercises.solutions import solution
from ..exercises.stage_checks import (
    GATHER_SPAN,
    NUM_SEQS,
    NUM_TOKENS,
    by_batch,
    equal_step,
    require_cached,
    require_nothing_kept,
    require_tokens,
    stage_on_copy,
    step_ops,
    zeroed_tensors,
)
from ..exercises.tensor_checks import explain_exactly
from ..exercises.wrong import Wrong
from ..lesson00.exercises import SHAPE_MISTAKES, Cache, draw_cache
from ..lesson01.exercises import BLOCK_SIZE, blocks_of, describe_blocks, draw_blocks, on_blocks

# 02.3


def _draw_padding(rng: Random) -> Case:
    shape = draw_cache(rng)._replace(tokens=1)
    return shape, [rng.randint(1, 90) for _ in range(rng.randint(1, 4))]


PADDINGS: list[Case] = [
    (Cache(1, 1, 1, 1, 1, 1), [1]),
    (Cache(2, 2, 1, 2, 1, 4), [1, 1, 500]),
    (Cache(1, 1, 1, 2, 1, 4), [10, 10]),
    (Cache(3, 6, 3, 2, 1, 2), [64, 7]),
    *draw(_draw_padding),
]


def padded(lengths: list[int]) -> int:
    return len(lengths) * max(lengths)


MISTAKEN_USEFUL: dict[str, Callable[[list[int]], float]] = {  # lengths -> tokens
    "you count the padded batch; the pair begins with the cached tokens": padded,
    "slots that hold no token are not gathered": lambda n: BLOCK_SIZE * sum(-(-x // BLOCK_SIZE) for x in n),
    "the new token is not cached yet": lambda n: sum(n) + len(n),
    "you count one row, the batch has one per sequence": max,
}
MISTAKEN_PADDED: dict[str, Callable[[list[int]], float]] = {
    "you count the cached tokens; every row is as long as the longest": sum,
    "the new token is not in the gathered batch, attention appends it": lambda n: len(n) * (max(n) + 1),
    "you count one row, the batch has one per sequence": max,
    "a row is as long as the longest sequence, not as its blocks": (
        lambda n: len(n) * BLOCK_SIZE * -(-max(n) // BLOCK_SIZE)
    ),
    "you count the padding alone; the batch holds the tokens, too": lambda n: padded(n) - sum(n),
}


def bytes_of(tokens: Callable[[list[int]], int], mistaken: Mapping[str, Callable[[list[int]], float]]) -> Expected:
    """Expect the bytes of K and V of `tokens` tokens.

    mistaken: wrong numbers of tokens, by what is wrong with them. Mistakes about the shape are added to them.
    """

    def with_tokens(
        tokens: Callable[[list[int]], Any], nbytes: Callable[[Cache], float] = lambda cache: cache.nbytes
    ) -> Callable[[Cache, list[int]], float]:
        return lambda shape, lengths: nbytes(shape._replace(tokens=tokens(lengths)))

    mistakes = {why: with_tokens(wrong) for why, wrong in mistaken.items()}
    mistakes |= {why: with_tokens(tokens, wrong) for why, wrong in SHAPE_MISTAKES.items()}
    return Expected(with_tokens(tokens), mistakes)


register(
    "02.3",
    Comparison(
        PADDINGS,
        {"useful": bytes_of(sum, MISTAKEN_USEFUL), "padded": bytes_of(padded, MISTAKEN_PADDED)},
        lambda shape, lengths: str(shape).replace(f"num_tokens={shape.tokens}", f"lengths={lengths}"),
        lambda answer, shape, lengths: values_of("useful", "padded")(answer, shape.config, lengths, shape.width),
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
    *[_row(blocks_of(n, seed=room), n, room) for n in (1, 5, 63, 64, 65, 128) for room in (0, 1, 100)],
    _row(blocks_of(70, dtype=torch.float64), 70, 7),
    *draw(lambda rng: _row(*draw_blocks(rng), rng.randint(0, 80))),
]


def _describe_row(blocks: list[Tensor], num_tokens: int, out: Tensor) -> str:
    return f"{describe_blocks(blocks, num_tokens)}, out {list(out.shape)}"


def _gathered_into(answer: Callable[..., None], blocks: list[Tensor], num_tokens: int, out: Tensor) -> Tensor:
    """Return out after the call. Raises Wrong unless all tokens, and nothing else, were written."""
    before = out.clone()
    returned = on_blocks(answer, blocks, num_tokens, out)
    if torch.equal(out, before):
        raise Wrong("out was not changed: write into it with out[...] = ...; assigning to the name does nothing")
    if not torch.equal(out[:, num_tokens:], before[:, num_tokens:]):
        raise Wrong(f"out[:, {num_tokens}:] was overwritten: it is padding")
    if same := [i for i in range(num_tokens) if torch.equal(out[:, i], before[:, i])]:
        raise Wrong(f"{len(same)} of {num_tokens} tokens were not written, the first is out[:, {same[0]}]")
    if returned is not None:
        raise Wrong(f"out is right, and you return a {type(returned).__name__}: the caller has out, return nothing")
    return out


def gathered(blocks: list[Tensor], num_tokens: int, out: Tensor) -> Tensor:
    filled = out.clone()
    solution("02.1")(blocks, num_tokens, filled)
    return filled


ORDER = {"the blocks are in the order of their tokens": lambda blocks, *row: gathered(blocks[::-1], *row)}
GATHERED = Comparison(ROWS, Expected(gathered, ORDER, explain_exactly), _describe_row, _gathered_into)


@exercise("02.1", GATHERED)
def gather_into(answer: Callable[[list[Tensor], int, Tensor], None]) -> None:
    def require_one_write_a_block(blocks: list[Tensor], num_tokens: int, out: Tensor) -> None:
        with _Writes(out, blocks) as writes:
            answer(blocks, num_tokens, out)
        if writes.made:
            raise Wrong(
                f"the values are right, but {writes.made[0]} makes another tensor, and its values are copied twice: "
                "write each block into out"
            )
        if not writes.into_out:
            raise Wrong("the values are right, but torch has not written them: write to out itself, not through NumPy")
        if (too_many := writes.into_out - len(blocks)) > 0:
            raise Wrong(
                f"the values are right, but {too_many} writes into out too many ({writes.into_out}, the budget is "
                f"{len(blocks)}, one a block)"
            )

    GATHERED(answer)
    require_all(ROWS, require_one_write_a_block, _describe_row)


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
        if written := _written(func, args, kwargs or {}):
            self.into_out += sum(tensor.untyped_storage().data_ptr() == self.out for tensor in written)
        elif torch.is_tensor(result) and result.is_floating_point():
            if result.untyped_storage().data_ptr() not in self.given:
                self.made.append(func.overloadpacket.__name__)
        return result


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """List the tensors that an operation writes to, as its schema says."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    written = [given.get(a.name) for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    return [tensor for one in written for tensor in (one if isinstance(one, (list, tuple)) else [one])]


# 02.2


@exercise("02.2")
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
    _require_one_tensor(answer, model)


def _require_one_tensor(answer: type[Stage], model: Model) -> None:
    """Raise Wrong unless K and V of all layers lie in one tensor."""
    stage: Any = stage_on_copy(answer, model, num_blocks=8)
    past = stage.build_batched_past(begin(stage, [[3, 4, 5], [6] * 9], SamplingParams()), 9)
    if (made := len({tensor.untyped_storage().data_ptr() for pair in past for tensor in pair})) > 1:
        raise Wrong(
            f"the tokens are right, but K and V of {model.config.num_layers} layers lie in {made} tensors; the budget "
            "is 1, of which each layer's k and v are views"
        )
