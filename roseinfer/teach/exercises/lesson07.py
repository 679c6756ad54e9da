"""Checkers of lesson 07: merging two softmax states, what a launch costs, and the learner's own kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.contract.broken_promises import count
from roseinfer.kernels import triton_mode

from ..measure.kernel_loads import plain_function
from .drawn import Expected, compare, draw, values_of
from .exercise import Wrong, exercise
from .explain import explain_tensor
from .kernel_runs import require_batches, require_loads, require_trials
from .tensor_checks import named_tensors, require_unchanged

State = tuple[Tensor, Tensor, Tensor]
NAMES = ("top", "total", "acc")


@exercise(
    "07.1",
    title="Merge two running softmaxes",
    minutes=10,
    difficulty=2,
    importance=5,
    stub="def merge(a, b): ...",
    task="Two programs have each walked over a part of one sequence. A state is `(top, total, acc)`: the largest score "
    "[H], the sum of exp(score - top) [H], and the sum of exp(score - top) * value [H, D]. Return the state of both "
    "parts together. A part may be empty: then top is -inf, total and acc are 0. Leave the two states as they are.",
    hints=(
        "The new top is the larger of the two; each total and acc was summed up against its own top.",
        "exp(top - new_top) turns sums against the old top into sums against the new one; for acc with [:, None].",
        "-inf - -inf is NaN. Where the new top is -inf both are empty, and any finite number will do in its place: "
        "torch.where(new_top == -math.inf, 0.0, new_top).",
    ),
)
def merge_states(answer: Callable[[State, State], State]) -> None:
    compare(
        answer,
        MERGES,
        {
            "top": Expected(partial(_merged, part=0), explain=_explain_part),
            "total": Expected(partial(_merged, part=1), {PLAIN_SUM: partial(_plain_sum, part=1)}, _explain_part),
            "acc": Expected(
                partial(_merged, part=2), {PLAIN_SUM: partial(_plain_sum, part=2), DIVIDED: _divided}, _explain_part
            ),
        },
        _describe_merge,
        _merge_with,
    )


# heads, D, tokens that the one state has seen and the other, the scores' scale, what is added to all, fp32 or fp64
Merge = tuple[int, int, int, int, float, float, str]


def _draw_merge(rng: Random) -> Merge:
    tokens = [rng.choice((0, 1, rng.randint(2, 9))) for _ in range(2)]
    scale, shift = rng.choice(((1.0, 0.0), (1.0, 0.0), (300.0, 0.0), (1.0, -60.0), (1.0, 90.0)))
    return rng.randint(1, 5), rng.randint(1, 6), *tokens, scale, shift, rng.choice(("fp32", "fp32", "fp32", "fp64"))


MERGES: list[Merge] = [
    (1, 1, 1, 1, 1.0, 0.0, "fp32"),
    (3, 4, 5, 7, 1.0, 0.0, "fp32"),
    (3, 4, 5, 7, 300.0, 0.0, "fp32"),
    (3, 4, 0, 7, 1.0, 0.0, "fp32"),
    (3, 4, 5, 0, 1.0, 0.0, "fp32"),
    (3, 4, 0, 0, 1.0, 0.0, "fp32"),
    (2, 3, 3, 3, 1.0, -60.0, "fp32"),
    (3, 2, 3, 3, 1.0, 0.0, "fp64"),
    *draw(_draw_merge),
]
PLAIN_SUM = "that is the plain sum of both: they were summed up against different tops"
DIVIDED = "it is divided by total already; such a state cannot be merged once more"


def _states(heads: int, dim: int, one: int, other: int, scale: float, shift: float, dtype: str) -> tuple[State, ...]:
    """The two states, and the right one of both parts together."""
    generator = torch.Generator().manual_seed(10 * one + other)
    like = {"generator": generator, "dtype": {"fp32": torch.float32, "fp64": torch.float64}[dtype]}
    scores = scale * torch.randn(heads, one + other, **like) + shift
    values = torch.randn(one + other, dim, **like)
    parts = zip(scores.split((one, other), 1), values.split((one, other)), strict=True)
    return *(_state(*part) for part in parts), _state(scores, values)


def _state(scores: Tensor, values: Tensor) -> State:
    """top [H], total [H], acc [H, D] of scores [H, T] and values [T, D]; T may be 0."""
    if not scores.size(1):
        empty = scores.new_zeros(scores.size(0))
        return empty - torch.inf, empty, scores.new_zeros(scores.size(0), values.size(1))
    top = scores.amax(1)
    weights = torch.exp(scores - top[:, None])
    return top, weights.sum(1), weights @ values


def _describe_merge(heads: int, dim: int, one: int, other: int, scale: float, shift: float, dtype: str) -> str:
    scores = f"scores of about {scale:g}" + (f" around {shift:g}" if shift else "")
    return f"states of {one} and of {other} tokens, H={heads}, D={dim}, {scores}, {dtype}"


def _merge_with(answer: Callable[[State, State], State], *merge: Any) -> dict[str, Tensor]:
    given, handed = _states(*merge)[:2], _states(*merge)[:2]
    got = named_tensors(answer(*handed), *NAMES)
    names = [f"{name} of the {which} state" for which in ("first", "second") for name in NAMES]
    require_unchanged(sum(given, ()), sum(handed, ()), names, ": make new tensors, no += and no mul_")
    return got


def _merged(*merge: Any, part: int) -> Tensor:
    return _states(*merge)[2][part]


def _plain_sum(*merge: Any, part: int) -> Tensor:
    one, other, _ = _states(*merge)
    return one[part] + other[part]


def _divided(*merge: Any) -> Tensor:
    _, total, acc = _states(*merge)[2]
    return acc / total[:, None]


def _explain_part(got: object, want: Tensor) -> str | None:
    message = explain_tensor(got, want)
    if message and isinstance(got, Tensor) and got.shape == want.shape and got.isnan().any():
        return f"{message}: did exp(-inf - -inf) come up, or exp of a score that is not shifted by the top?"
    if message and isinstance(got, Tensor) and got.shape == want.shape and not got.isfinite().all():
        return f"{message}: exp of a score that is not shifted by the top overflows"
    return message


@exercise(
    "07.2",
    title="What one launch costs",
    minutes=10,
    difficulty=2,
    importance=4,
    stub="def cost(lengths, num_kv_heads, head_dim, tile, bytes_per_value): ...",
    task="One launch of stage 07's compiled kernel serves a layer: a program for each (sequence, KV head). Return "
    "three numbers: how many programs, how many tiles the program with the most work walks over, and how many bytes "
    "of K and V all programs load from the pool together. `lengths` are the cached tokens of each sequence.",
    hints=(
        "A program walks over `range(0, num_cached, tile)`: how many steps is that, the last one included?",
        "A masked load reads nothing: count cached tokens, not tiles, when you count bytes.",
        "A token of one KV head is head_dim values in K, and as many in V.",
    ),
)
def launch_cost(answer: Callable[[list[int], int, int, int, int], tuple[int, int, int]]) -> None:
    compare(
        answer,
        LAUNCHES,
        {
            "programs": Expected(_programs, PROGRAM_MISTAKES),
            "tiles": Expected(_most_tiles, TILE_MISTAKES),
            "bytes": Expected(_bytes, BYTE_MISTAKES),
        },
        lambda lengths, heads, dim, tile, width: (
            f"lengths {lengths}, {count(heads, 'KV head')} of {dim}, tile {tile}, {width} bytes a value"
        ),
        values_of("programs", "tiles", "bytes"),
    )


def _draw_launch(rng: Random) -> tuple[list[int], int, int, int, int]:
    tile = rng.choice((16, 32, 64, 128))
    edges = (0, 1, tile - 1, tile, tile + 1, 3 * tile)
    lengths = [rng.choice((*edges, rng.randint(1, 300))) for _ in range(rng.randint(1, 5))]
    return lengths, rng.randint(1, 8), rng.choice((32, 64, 80, 96, 128)), tile, rng.choice((2, 4))


# cached tokens of each sequence, KV heads, head_dim, tokens of a tile, bytes a value
LAUNCHES = [
    ([64], 1, 32, 16, 4),
    ([0], 1, 32, 16, 2),
    ([300, 64, 1, 130], 6, 32, 64, 4),
    ([0, 17, 16], 8, 128, 16, 2),
    *draw(_draw_launch),
]


def _programs(lengths: list[int], heads: int, dim: int, tile: int, width: int) -> int:
    return len(lengths) * heads


def _most_tiles(lengths: list[int], heads: int, dim: int, tile: int, width: int) -> int:
    return -(-max(lengths) // tile)


def _bytes(lengths: list[int], heads: int, dim: int, tile: int, width: int) -> int:
    return sum(lengths) * 2 * heads * dim * width


def _tiles_of_all(lengths: list[int], heads: int, dim: int, tile: int, width: int) -> int:
    return sum(-(-n // tile) for n in lengths)


PROGRAM_MISTAKES = {
    "a sequence has a program for each of its KV heads": lambda lengths, *rest: len(lengths),
    "a sequence with nothing cached has its programs too": lambda lengths, heads, *rest: (
        heads * sum(n > 0 for n in lengths)
    ),
}
TILE_MISTAKES = {
    "the last tile counts, full or not": lambda lengths, heads, dim, tile, width: max(lengths) // tile,
    "that is a tile more than a multiple of the tile needs": lambda lengths, heads, dim, tile, width: (
        max(lengths) // tile + 1
    ),
    "that is all sequences together; programs run side by side, so the longest counts": _tiles_of_all,
}
BYTE_MISTAKES = {
    "K and V are both loaded": lambda *case: _bytes(*case) // 2,
    "those are values, not bytes": lambda *case: _bytes(*case) // case[-1],
    "a masked load reads nothing, count the cached tokens alone": lambda lengths, heads, dim, tile, width: (
        _tiles_of_all(lengths, heads, dim, tile, width) * tile * 2 * heads * dim * width
    ),
    "nobody is padded to the longest sequence here": lambda lengths, *rest: _bytes(
        [max(lengths)] * len(lengths), *rest
    ),
    "that is one KV head": lambda *case: _bytes(*case) // case[1],
    "the new token's k and v do not come from the pool": lambda lengths, *rest: _bytes([n + 1 for n in lengths], *rest),
    "masked dims are not read either: head_dim counts, not the power of two above it": (
        lambda lengths, heads, dim, *rest: _bytes(lengths, heads, 1 << (dim - 1).bit_length(), *rest)
    ),
}


@exercise(
    "07.3",
    title="Your own paged attention kernel",
    minutes=30,
    difficulty=4,
    importance=5,
    stub="""
@triton_mode.jit
def my_kernel(
    out, q, k, v, k_cache, v_cache, block_table, context_lens, scale, table_row,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    ...
""",
    task="Write the kernel: **one program for each (sequence, query head)**, launched by `launch` above, so every "
    "tensor but the table is contiguous. Walk over the blocks in tiles of BLOCK_SIZE tokens with the running softmax, "
    "and store [HEAD_DIM] values of `out`. It is tried on ragged batches over a pool full of NaN, on shared KV heads, "
    "on a head size that is no power of two, in fp32, fp16 and bf16.",
    hints=(
        "seq, head = tl.program_id(0), tl.program_id(1). Begin with the new token: top is its score, a tl.sum over "
        "dim; total is 1.0 and acc is its v. Store acc and pass the first trial, then write the loop.",
        "In the loop: block = tl.load(block_table + seq * table_row + start // BLOCK_SIZE); the pool's element "
        "(block, slot, kv_head, dim) lies at ((block * BLOCK_SIZE + slot) * NUM_KV_HEADS + kv_head) * HEAD_DIM + dim.",
        "Offsets and masks are [BLOCK_SIZE, DIM_PAD]: slot[:, None] and dim[None, :]. Scores are tl.sum(query[None, :] "
        "* keys, axis=1), -inf where the slot holds no token; then new_top, weights, shrink as in `add_tile`.",
    ),
)
def own_kernel(answer: Any, launch: Callable[..., Tensor]) -> None:
    function = plain_function(answer)
    if function is answer:
        raise Wrong("expected a Triton kernel: decorate the function with @triton_mode.jit")
    require_trials(answer, launch)
    require_batches(answer, launch)
    if triton_mode.MODE == "interpret":
        require_loads(answer, launch)
