"""Checkers of lesson 07: merging two softmax states, what a split launch costs, and the learner's own kernel."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from course.contract.broken_promises import count
from roseinfer.kernels import triton_mode

from ..exercises.as_solved import as_solved_by_name
from ..exercises.drawn import Comparison, draw
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import named_tensors, require_unchanged
from ..exercises.wrong import Wrong
from ..measure.kernel_loads import plain_function
from .kernel_runs import require_batches, require_loads

State = tuple[Tensor, Tensor, Tensor]
NAMES = ("top", "total", "acc")


# 07.1

# heads, D, tokens of the first state and of the second, scale of the scores, what is added to all, fp32 or fp64
Merge = tuple[int, int, int, int, float, float, str]


def _draw_merge(rng: Random) -> Merge:
    one, other = (rng.choice((0, 1, rng.randint(2, 9))) for _ in range(2))
    scale, shift = rng.choice(((1.0, 0.0), (1.0, 0.0), (300.0, 0.0), (1.0, -60.0), (1.0, 90.0)))
    return rng.randint(1, 5), rng.randint(1, 6), one, other, scale, shift, rng.choice(("fp32", "fp32", "fp32", "fp64"))


MERGES: list[Merge] = [
    (1, 1, 1, 1, 1.0, 0.0, "fp32"),
    (3, 4, 0, 0, 1.0, 0.0, "fp32"),
    (3, 2, 3, 3, 1.0, 0.0, "fp64"),
    *draw(_draw_merge),
]


def _states(heads: int, dim: int, one: int, other: int, scale: float, shift: float, dtype: str) -> list[State]:
    """Make the states of two parts."""
    generator = torch.Generator().manual_seed(10 * one + other)
    like: dict[str, Any] = {"generator": generator, "dtype": {"fp32": torch.float32, "fp64": torch.float64}[dtype]}
    return [
        _state(scale * torch.randn(heads, length, **like) + shift, torch.randn(length, dim, **like))
        for length in (one, other)
    ]


def _state(scores: Tensor, values: Tensor) -> State:
    """Return top [H], total [H], acc [H, D] of scores [H, T] and values [T, D]; T may be 0."""
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
    given, handed = _states(*merge), _states(*merge)
    got = named_tensors(answer(*handed), *NAMES)
    names = [f"{name} of the {which} state" for which in ("first", "second") for name in NAMES]
    require_unchanged(sum(given, ()), sum(handed, ()), names, ": make new tensors, no += and no mul_")
    return got


def _explain_part(got: object, want: Tensor) -> str | None:
    message = explain_tensor(got, want)
    if message and isinstance(got, Tensor) and got.shape == want.shape and got.isnan().any():
        return f"{message}: did exp(-inf - -inf) come up, or exp of a score that is not shifted by the top?"
    if message and isinstance(got, Tensor) and got.shape == want.shape and not got.isfinite().all():
        return f"{message}: exp of a score that is not shifted by the top overflows"
    return message


PLAIN_SUM = "that is the plain sum of both, but they were summed up against different tops"
MERGE_MISTAKES = {
    "top": {"the larger of both tops is the top of all": {"torch.maximum": "torch.minimum"}},
    "total": {PLAIN_SUM: {"part_total * shrink": "part_total"}},
    "acc": {
        PLAIN_SUM: {"part_acc * shrink[:, None]": "part_acc"},
        "it is divided by total already; such a state cannot be merged again": {
            "total, acc\n": "total, acc / total[:, None]\n"
        },
    },
}

register(
    "07.1",
    Comparison(
        MERGES,
        as_solved_by_name("07.1", MERGE_MISTAKES, _explain_part, _merge_with, torch=torch),
        _describe_merge,
        _merge_with,
    ),
)


# 07.3


def _draw_launch(rng: Random) -> tuple[list[int], int, int, int, int, int]:
    tile = rng.choice((16, 32, 64, 128))
    edges = (0, 1, tile - 1, tile, tile + 1, 3 * tile)
    lengths = [rng.choice((*edges, rng.randint(1, 300))) for _ in range(rng.randint(1, 5))]
    return lengths, rng.randint(1, 8), rng.choice((32, 64, 80, 96, 128)), tile, rng.choice((2, 4)), rng.randint(1, 6)


# cached tokens of each sequence, KV heads, head_dim, tokens of a tile, bytes per value, parts of a sequence
LAUNCHES = [
    ([64], 1, 32, 16, 4, 1),
    ([0], 1, 32, 16, 2, 1),
    ([64], 1, 32, 16, 4, 2),
    ([300, 64, 1, 130], 6, 32, 64, 4, 2),  # 5 tiles in 2 parts
    ([0, 17, 16], 8, 128, 16, 2, 3),  # more parts than tiles
    *draw(_draw_launch),
]


TILES, PARTS, CACHED = "-(-max(lengths) // tile)", "-(-most_tiles // num_parts)", "sum(lengths)"
COST_MISTAKES = {
    "programs": {
        "each part of a sequence has a program per KV head": {"num_kv_heads * num_parts": "num_kv_heads"},
        "each part of a sequence has programs for all of its KV heads": {"num_kv_heads * num_parts": "num_parts"},
        "a sequence with nothing cached has its programs too": {"len(lengths)": "sum(n > 0 for n in lengths)"},
    },
    "tiles": {
        "that is a whole sequence; its tiles are shared by num_parts programs": {PARTS: "most_tiles"},
        "the last tile counts, full or not": {TILES: "max(lengths) // tile"},
        "some part has one tile more, when num_parts does not divide the tiles": {PARTS: "most_tiles // num_parts"},
        "that is all sequences together; programs run side by side, so the longest counts": {
            TILES: "sum(-(-n // tile) for n in lengths)"
        },
    },
    "bytes": {
        "K and V are both loaded": {"2 * num_kv_heads": "num_kv_heads"},
        "those are values, not bytes": {" * bytes_per_value": ""},
        "a masked load reads nothing, so count cached tokens, not tiles": {
            CACHED: "sum(-(-n // tile) * tile for n in lengths)"
        },
        "here no sequence is padded to the longest one": {CACHED: "len(lengths) * max(lengths)"},
        "that is one KV head": {"2 * num_kv_heads": "2"},
        "each part loads its own tokens only, so parts add no loads": {"2 * num_kv": "2 * num_parts * num_kv"},
        "the new token's k and v do not come from the pool": {CACHED: f"({CACHED} + len(lengths))"},
        "masked dims are not read either: head_dim counts, not the power of two above it": {
            "* head_dim": "* (1 << (head_dim - 1).bit_length())"
        },
    },
}

register(
    "07.3",
    Comparison(
        LAUNCHES,
        as_solved_by_name("07.3", COST_MISTAKES),
        lambda lengths, heads, dim, tile, width, parts: (
            f"lengths {lengths}, {count(heads, 'KV head')} of {dim}, tile {tile}, {width} bytes per value, "
            f"{count(parts, 'part')}"
        ),
    ),
)


# 07.2


@exercise("07.2")
def own_kernel(answer: Any, launch: Callable[..., Tensor]) -> None:
    function = plain_function(answer)
    if function is answer:
        raise Wrong("expected a Triton kernel: decorate the function with @triton_mode.jit")
    require_batches(answer, launch)
    if triton_mode.MODE == "interpret":
        require_loads(answer, launch)
