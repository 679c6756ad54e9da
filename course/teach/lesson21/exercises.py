"""Checkers of lesson 21: an MLP in parts, rows of a fused QKV, a ring, and a layer that is cut by inputs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.exercise import register
from ..exercises.solutions import solution
from ..exercises.wrong import Wrong

Rows = list[list[float]]

# 21.1

MLP = ("x", "w1", "b1", "w2", "b2", "rank", "size")


def as_arrays(answer: Callable[..., Any], *case: Any) -> Any:
    *matrices, rank, size = case
    arrays = [np.array(m, dtype=np.float64) for m in matrices]
    got = answer(*arrays, rank, size)
    for given, array in zip(matrices, arrays, strict=True):
        given[:] = array.tolist()  # where the comparison sees what the answer has changed
    if got is None:
        raise Wrong("you return None: is a `return` missing?")
    return np.asarray(got).tolist()


def partial_mlp(
    x: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    b2: Any,
    rank: int,
    size: int,
    of_b1: Callable[[slice], slice] = lambda part: part,
    of_w2: Callable[[slice], slice] = lambda part: part,
    act: Callable[[Any], Any] = lambda h: np.maximum(h, 0),
    adds_b2: Callable[[int], bool] = lambda rank: rank == 0,
) -> list[list[float]]:
    """Compute a rank's part of an MLP. of_b1, of_w2: their share, from w1's column share. adds_b2: which ranks do."""
    x, w1, b1, w2, b2 = (np.array(m, dtype=np.float64) for m in (x, w1, b1, w2, b2))
    share = len(b1) // size
    part = slice(rank * share, (rank + 1) * share)
    y = act(x @ w1[:, part] + b1[of_b1(part)]) @ w2[of_w2(part)]
    return (y + b2 if adds_b2(rank) else y).tolist()


def changed(**change: Any) -> Callable[..., Any]:
    return lambda *case: partial_mlp(*case, **change)


def _first(part: slice) -> slice:
    return slice(0, part.stop - part.start)


PARTIAL_MISTAKES: dict[str, Callable[..., Any]] = {
    "each rank adds b2, so the sum has it several times: rank 0 adds it": changed(adds_b2=lambda rank: True),
    "no rank adds b2: rank 0 does": changed(adds_b2=lambda rank: False),
    "the entries of b1 belong to the columns of w1: they are cut like these": changed(of_b1=_first),
    "the rows of w2 belong to the columns of w1: they are cut like these": changed(of_w2=_first),
    "relu is missing": changed(act=lambda h: h),
    "each rank computes the whole MLP: the sum is `size` times too large": lambda x, w1, b1, w2, b2, rank, size: (
        partial_mlp(x, w1, b1, w2, b2, 0, 1)
    ),
}


def _matrix(rng: Random, rows: int, columns: int) -> Rows:
    """Draw halves, whose products and sums are exact."""
    return [[rng.randint(-6, 6) / 2 for _ in range(columns)] for _ in range(rows)]


def _draw_mlp(rng: Random) -> tuple[Any, ...]:
    size = rng.choice((1, 2, 2, 3, 4))
    n, k, h, m = rng.randint(1, 3), rng.randint(1, 3), size * rng.randint(1, 2), rng.randint(1, 3)
    [b1], [b2] = _matrix(rng, 1, h), _matrix(rng, 1, m)
    large = rng.choice((1, 1, 64))
    x = [[value * large for value in row] for row in _matrix(rng, n, k)]
    return x, _matrix(rng, k, h), b1, _matrix(rng, h, m), b2, rng.randrange(size), size


register(
    "21.1",
    Comparison(
        [
            ([[1]], [[1, 1]], [0, 1], [[1], [1]], [5], 1, 2),
            ([[1]], [[-1, 2]], [0, 0], [[3], [4]], [1], 0, 2),
            ([[1, 2]], [[1, 0], [0, 1]], [1, -1], [[1, 2], [3, 4]], [5, 6], 0, 1),
            *draw(_draw_mlp, 80),
        ],
        Expected(partial_mlp, PARTIAL_MISTAKES),
        inputs(*MLP),
        call=as_arrays,
    ),
)

# 21.2


qkv_rows = solution("21.2")


def in_halves(num_heads: int, num_kv_heads: int, head_dim: int, rank: int, size: int) -> list[int]:
    share = (num_heads + 2 * num_kv_heads) * head_dim // size
    return list(range(rank * share, (rank + 1) * share))


def as_many_kv_heads(num_heads: int, num_kv_heads: int, head_dim: int, rank: int, size: int) -> list[int]:
    return qkv_rows(num_heads, num_heads, head_dim, rank, size)


def every_nth_head(num_heads: int, num_kv_heads: int, head_dim: int, rank: int, size: int) -> list[int]:
    rows, start = [], 0
    for heads in (num_heads, num_kv_heads, num_kv_heads):
        rows += [start + head * head_dim + i for head in range(rank, heads, size) for i in range(head_dim)]
        start += heads * head_dim
    return rows


def parts_of_heads(num_heads: int, num_kv_heads: int, head_dim: int, rank: int, size: int) -> list[int]:
    return qkv_rows(num_heads, num_kv_heads, 1, rank, size)


QKV_MISTAKES: dict[str, Callable[..., Any]] = {
    "the matrix is cut as one, and a rank has queries without their keys: cut q, k and v, each by heads": in_halves,
    "there are num_kv_heads heads of k and of v, which may be fewer": as_many_kv_heads,
    "the share is contiguous: else query heads would be without their key heads": every_nth_head,
    "a head has head_dim rows": parts_of_heads,
    "k and v are missing": lambda *case: qkv_rows(*case)[: case[0] // case[4] * case[2]],
    "v is missing": lambda *case: qkv_rows(*case)[: (case[0] + case[1]) // case[4] * case[2]],
}


def _draw_heads(rng: Random) -> tuple[int, ...]:
    size = rng.choice((1, 2, 2, 3, 4))
    kv_heads = size * rng.randint(1, 3)
    return kv_heads * rng.randint(1, 3), kv_heads, rng.randint(1, 4), rng.randrange(size), size


HEADS = [(2, 2, 1, 0, 2), (2, 2, 1, 1, 2), (4, 2, 1, 1, 2), (2, 2, 2, 0, 1), (16, 8, 128, 7, 8), *draw(_draw_heads, 80)]

register(
    "21.2",
    Comparison(
        [
            (2, 2, 1, 0, 2),
            (2, 2, 1, 1, 2),
            (4, 2, 1, 1, 2),
            (2, 2, 2, 0, 1),
            (16, 8, 128, 7, 8),
            *draw(_draw_heads, 80),
        ],
        Expected(qkv_rows, QKV_MISTAKES),
        inputs("num_heads", "num_kv_heads", "head_dim", "rank", "size"),
    ),
)

# 21.3


ring_chunks = solution("21.3")

RING_MISTAKES: dict[str, Callable[..., Any]] = {
    "the finished chunks have to go round, too: the second half is missing": lambda r, n: ring_chunks(r, n)[: n - 1],
    "a half has size - 1 steps: after them no rank misses a chunk": lambda r, n: [(r - s) % n for s in range(2 * n)],
    "a rank sends on what it has just received, not its own chunk again": lambda r, n: [r] * (2 * (n - 1)),
    "what a rank received comes from its left neighbour: chunk numbers fall": lambda r, n: [
        (r + s) % n for s in range(2 * (n - 1))
    ],
    "the second half begins with the chunk that the rank has just finished": lambda r, n: (
        2 * [(r - s) % n for s in range(n - 1)]
    ),
}
RINGS = [*((rank, size) for size in range(1, 12) for rank in range(size)), (5, 64), (63, 64)]
register("21.3", Comparison(RINGS, Expected(ring_chunks, RING_MISTAKES), inputs("rank", "size")))

# 21.4


def run_layer(
    answer: Callable[..., Any], x: Rows, weight: Rows, bias: list[float] | None, other: Rows
) -> dict[str, Any]:
    """Run x through a layer, beside a rank that gives `other` to the sum."""
    sums, given = [], {"x": x, "weight": weight, "bias": bias}

    def all_reduce(y: Tensor) -> Tensor:
        sums.append(y.tolist())
        return y.add_(torch.tensor(other, dtype=torch.float32))

    def neighbour() -> None:  # a model has layers of the same shape before and after this one
        answer(torch.full((len(weight), len(x[0])), 7.0), None, lambda y: y)(torch.ones(len(x), len(x[0])))

    neighbour()
    held = {name: torch.tensor(m, dtype=torch.float32) for name, m in given.items() if m is not None}
    layer = answer(held["weight"], held.get("bias"), all_reduce)
    neighbour()
    got = layer(held["x"])
    if not isinstance(got, Tensor):
        raise Wrong(f"forward must return a tensor, got {type(got).__name__}")
    for name, tensor in held.items():
        if tensor.tolist() != given[name]:
            raise Wrong(f"{name} was handed in, and you have changed it, which is the caller's: make a copy")
    if not sums:
        raise Wrong("all_reduce was not called: the other rank's part is missing")
    result = {"what all_reduce gets": sums[0], "forward(x)": got.tolist(), "calls of all_reduce": len(sums)}
    if layer(held["x"].clone()).tolist() != result["forward(x)"]:
        raise Wrong("a second call of forward gives another result: a call must not change the layer")
    mirrored = [[-value for value in row] for row in x]
    is_right = result["forward(x)"] == layer_result(x, weight, bias, other)
    if is_right and layer(-held["x"]).tolist() != layer_result(mirrored, weight, bias, other):
        raise Wrong("a call with another x of the same shape gives a wrong result: keep nothing of an earlier call")
    return result


def layer_result(x: Rows, weight: Rows, bias: list[float] | None, other: Rows) -> list[list[float]]:
    y = np.array(x) @ np.array(weight).T + np.array(other)
    return (y + (0 if bias is None else np.array(bias))).astype(float).tolist()


def layer_part(x: Rows, weight: Rows, bias: list[float] | None, other: Rows) -> list[list[float]]:
    """Compute what this rank gives to the sum."""
    return (np.array(layer_result(x, weight, bias, other)) - np.array(other)).tolist()


PART_MISTAKES: dict[str, Callable[..., Any]] = {
    "the other rank gets this sum, too, and adds no bias: add the bias before the sum": lambda x, w, b, other: (
        layer_part(x, w, None, other)
    ),
}


def _less(what: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *case: (np.array(layer_result(*case)) - what(*case)).tolist()


LAYER_MISTAKES: dict[str, Callable[..., Any]] = {
    "the other rank's part is missing: return what all_reduce returns": _less(lambda x, w, b, other: np.array(other)),
    "the bias is in the sum already: it is added twice": _less(lambda x, w, b, other: 0 if b is None else -np.array(b)),
    "relu belongs to the layer before": lambda *case: np.maximum(layer_result(*case), 0).tolist(),
}


def _draw_layer(rng: Random) -> tuple[Any, ...]:
    n, k, m = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 3)
    bias = rng.choice((None, [rng.randint(1, 5) for _ in range(m)]))
    return _matrix(rng, n, k), _matrix(rng, m, k), bias, _matrix(rng, n, m)


register(
    "21.4",
    Comparison(
        [([[1]], [[2]], None, [[3]]), ([[1]], [[2]], [4], [[3]]), *draw(_draw_layer, 60)],
        {
            "what all_reduce gets": Expected(layer_part, PART_MISTAKES),
            "forward(x)": Expected(layer_result, LAYER_MISTAKES),
            "calls of all_reduce": Expected(lambda *case: 1),
        },
        inputs("x", "weight", "bias", "the other rank's part"),
        call=run_layer,
    ),
)
