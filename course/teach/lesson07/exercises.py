"""Checkers of lesson 07: merging two softmax states, the learner's own kernel, and what a split launch costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.kernels import triton_mode
from roseinfer.kernels.cases import paged_case

from ..exercises.as_solved import as_solved_by_name
from ..exercises.attention_checks import LARGE_SCORES, UPCAST, Batch, attention_comparison, draw_lengths
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.solutions import solution
from ..exercises.tensor_checks import named_tensors, require_unchanged
from ..exercises.wrong import Wrong
from ..measure.kernel_loads import GuardedKernel, count_loads, plain_function

# 07.1

State = tuple[Tensor, Tensor, Tensor]
NAMES = ("top", "total", "acc")
Merge = tuple[list[float], list[float], int, str]  # each state's top of every head, D, dtype


def _draw_merge(rng: Random) -> Merge:
    scale, shift = rng.choice(((1, 0), (1, 0), (300, 0), (1, -60), (1, 90)))
    heads = rng.randint(1, 5)
    some = [[round(rng.gauss(shift, scale), 1) for _ in range(heads)] for _ in range(2)]
    a, b = (tops if rng.random() < 0.7 else [-math.inf] * heads for tops in some)
    return a, b, rng.randint(1, 6), rng.choice(("float32", "float32", "float64"))


def _states(a: list[float], b: list[float], head_dim: int, dtype: str) -> list[State]:
    """Make two states with these tops; a part whose tops are -inf is empty."""
    generator = torch.Generator().manual_seed(head_dim)
    like: dict[str, Any] = {"generator": generator, "dtype": getattr(torch, dtype)}
    states = []
    for tops in (a, b):
        top = torch.tensor(tops, dtype=like["dtype"])
        total, acc = 1 + torch.rand(len(tops), **like), torch.randn(len(tops), head_dim, **like)
        states.append((top, total * top.isfinite(), acc * top.isfinite()[:, None]))
    return states


def _merge_with(answer: Callable[[State, State], State], *merge: Any) -> dict[str, Tensor]:
    given, handed = _states(*merge), _states(*merge)
    got = named_tensors(answer(*handed), *NAMES)
    names = [f"{name} of the {which} state" for which in ("first", "second") for name in NAMES]
    require_unchanged(sum(given, ()), sum(handed, ()), names, ": make new tensors, no += and no mul_")
    return got


def _explain_part(got: object, want: Tensor) -> str | None:
    message = explain_tensor(got, want)
    if message and ("NaN" in message or "got inf" in message):
        return f"{message}: is -inf subtracted from -inf, or exp taken of a score that is not shifted by the top?"
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
MERGED = as_solved_by_name("07.1", MERGE_MISTAKES, _explain_part, _merge_with, torch=torch)
MERGES = [([-math.inf], [-math.inf], 1, "float32"), *draw(_draw_merge)]
register("07.1", Comparison(MERGES, MERGED, inputs("top of a", "top of b", "D", "dtype"), _merge_with))


# 07.2

KERNEL_MISTAKES = {
    "the new token's weight is exp(0) = 1: start from total = 1 and acc = its v": {"total = 1.0": "total = 0.0"},
    "the scores are not multiplied by `scale`": {" * scale": ""},
    "when a larger score comes, acc and total must shrink by exp(top - new_top)": {" * shrink": ""},
    "the weighted sum is not divided by total at the end": {"acc / total": "acc"},
    "slots after the last token take part with a score of 0: their score must be -inf": {'float("-inf")': "0.0"},
    "a slot past the sequence's own context_lens was read: mask the loads of K and V, with other=0.0": {
        "cached[:, None] & real": "(slot >= 0)[:, None] & real"
    },
    "the id stands in block_table, it is not the index of the block": {
        "tl.load(block_table + seq * table_row + start // BLOCK_SIZE)": "(0 * seq + start // BLOCK_SIZE)"
    },
    "a wrong KV head: query head h belongs to KV head h // (NUM_HEADS // NUM_KV_HEADS)": {
        "head // (NUM_HEADS // NUM_KV_HEADS)": "head % NUM_KV_HEADS"
    },
    "give masked loads other=0.0, and mask every load and the store with dim < HEAD_DIM": {
        "tl.load(q + q_at, mask=real, other=0.0)": "tl.load(q + q_at, mask=real)"
    },
}


def _draw_batch(rng: Random) -> Batch:
    """Draw a batch of one of a few shapes: a GPU has to compile a kernel for each shape."""
    num_kv_heads, group, head_dim, block_size = rng.choice(((1, 1, 16, 4), (2, 2, 12, 2), (1, 2, 16, 8), (1, 3, 8, 32)))
    lengths = draw_lengths(rng, block_size, most=block_size, most_seqs=2)
    dtype = rng.choice(("fp32", "fp32", "fp32", "fp16", "bf16"))
    return Batch(lengths, num_kv_heads, group, head_dim, block_size, dtype)


BATCHES = [
    Batch([40], 1, 1, 16, 4, "fp32"),  # 10 blocks
    Batch([33, 3], 1, 7, 8, 32, "fp32"),
    Batch([20, 3], 1, 2, 80, 16, "fp32"),  # a head size that is padded to 128
    *LARGE_SCORES,
    *draw(_draw_batch),
]


@exercise("07.2")
def own_kernel(answer: Any, launch: Callable[..., Tensor]) -> None:
    if plain_function(answer) is answer:
        raise Wrong("expected a Triton kernel: decorate the function with @triton_mode.jit")
    _attended(launch)(partial(_attend, answer, launch))
    if triton_mode.MODE == "interpret":
        _require_loads(answer, launch)


@cache
def _attended(launch: Callable[..., Tensor]) -> Comparison:
    """Compare kernels that `launch` runs. Made when it is asked for, because without Triton there is no solution."""
    names = {"triton_mode": triton_mode, "tl": triton_mode.language()}
    mistakes = {
        why: partial(_attend, solution("07.2", changes, **names), launch) for why, changes in KERNEL_MISTAKES.items()
    }
    return attention_comparison(BATCHES, mistakes, "cuda" if triton_mode.MODE == "compile" else "cpu")


def _attend(kernel: Any, launch: Callable[..., Tensor], q: Tensor, *case: Tensor) -> Tensor:
    try:
        return launch(GuardedKernel(kernel), q, *case)
    except Exception as error:
        if q.dtype == torch.bfloat16:  # the interpreter has no bf16 constants
            error.args = (f"{error}: {UPCAST}",)
        raise


def _require_loads(kernel: Any, launch: Callable[..., Tensor]) -> None:
    """Raise Wrong if a program loads a cached value more than once."""
    group = 2
    counts = count_loads(lambda *arguments: launch(kernel, *arguments), paged_case([20, 3], group=group))
    most = max(int(count.max()) for count in counts)
    if most > group:
        raise Wrong(
            f"right everywhere, but a cached value is loaded {most} times for {group} query heads; the budget is "
            f"{group}, once per program: keep the values that you have loaded"
        )


# 07.3


def _draw_launch(rng: Random) -> tuple[list[int], int, int, int, int, int]:
    tile = rng.choice((16, 32, 64, 128))
    edges = (0, 1, tile - 1, tile, tile + 1, 3 * tile)
    lengths = [rng.choice((*edges, rng.randint(1, 300))) for _ in range(rng.randint(1, 5))]
    return lengths, rng.randint(1, 8), rng.choice((32, 64, 80, 96, 128)), tile, rng.choice((2, 4)), rng.randint(1, 6)


TILES, PARTS, CACHED = "-(-max(lengths) // tile)", "-(-most_tiles // num_parts)", "sum(lengths)"
COST_MISTAKES = {
    "programs": {
        "each part of a sequence has a program per KV head": {"num_kv_heads * num_parts": "num_kv_heads"},
    },
    "tiles": {
        "that is a whole sequence; its tiles are shared by num_parts programs": {PARTS: "most_tiles"},
        "the last tile counts, full or not": {TILES: "max(lengths) // tile"},
    },
    "bytes": {
        "K and V are both loaded": {"2 * num_kv_heads": "num_kv_heads"},
        "a masked load reads nothing, so count cached tokens, not tiles": {
            CACHED: "sum(-(-n // tile) * tile for n in lengths)"
        },
        "here no sequence is padded to the longest one": {CACHED: "len(lengths) * max(lengths)"},
        "each part loads its own tokens only, so parts add no loads": {"2 * num_kv": "2 * num_parts * num_kv"},
    },
}
COSTS = inputs("lengths", "num_kv_heads", "head_dim", "tile", "bytes_per_value", "num_parts")
register("07.3", Comparison(draw(_draw_launch), as_solved_by_name("07.3", COST_MISTAKES), COSTS))
