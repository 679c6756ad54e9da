"""Checkers of lesson 21: an MLP in parts, rows of a fused QKV, the faster all-reduce, and a layer cut by inputs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Case, Comparison, draw, inputs
from ..exercises.exercise import register
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong

Rows = list[list[float]]

# 21.1

PARTIAL_MISTAKES = {
    "each rank adds b2, so the sum has it several times: rank 0 adds it": {" if rank == 0 else y": ""},
    "no rank adds b2: rank 0 does": {"y + b2 if rank == 0 else y": "y"},
    "the entries of b1 belong to the columns of w1: they are cut like these": {"b1[part]": "b1[:share]"},
    "the rows of w2 belong to the columns of w1: they are cut like these": {"w2[part]": "w2[:share]"},
    "relu is missing": {"np.maximum": "np.add"},
    "each rank computes the whole MLP: the sum is `size` times too large": {
        "slice(rank * share, (rank + 1) * share)": "slice(None)",
        " if rank == 0 else y": "",
    },
}


def _by_arrays(answer: Callable[..., Any], *case: Any) -> Any:
    *matrices, rank, size = case
    arrays = [np.array(matrix, dtype=np.float64) for matrix in matrices]
    got = answer(*arrays, rank, size)
    if [array.tolist() for array in arrays] != matrices:
        raise Wrong("you have changed what you were called with, which is the caller's: make a copy")
    return got


def _matrix(rng: Random, rows: int, columns: int, unit: float = 0.5) -> Rows:
    """Draw multiples of a unit, whose products and sums are exact."""
    return [[rng.randint(-6, 6) * unit for _ in range(columns)] for _ in range(rows)]


def _draw_mlp(rng: Random) -> Case:
    size = rng.choice((1, 2, 2, 3, 4))
    n, k, h, m = rng.randint(1, 3), rng.randint(1, 3), size * rng.randint(1, 2), rng.randint(1, 3)
    [b1], [b2] = _matrix(rng, 1, h), _matrix(rng, 1, m)
    x = _matrix(rng, n, k, rng.choice((0.5, 0.5, 32)))
    return x, _matrix(rng, k, h), b1, _matrix(rng, h, m), b2, rng.randrange(size), size


register(
    "21.1",
    Comparison(
        [([[1]], [[1, 1]], [0, 1], [[1], [1]], [5], 1, 2), *draw(_draw_mlp, 80)],
        as_solved("21.1", PARTIAL_MISTAKES, call=_by_arrays, np=np),
        inputs("x", "w1", "b1", "w2", "b2", "rank", "size"),
        call=_by_arrays,
    ),
)

# 21.2

KEYS, VALUES = " + share(keys, num_kv_heads)", " + share(values, num_kv_heads)"
QKV_MISTAKES = {
    "the matrix is cut as one, and a rank has queries without their keys: cut q, k and v, each by heads": {
        f"share(0, num_heads){KEYS}{VALUES}": "share(0, num_heads + 2 * num_kv_heads)"
    },
    "there are num_kv_heads heads of k and of v, which may be fewer": {
        "keys + num_kv_heads": "keys + num_heads",
        ", num_kv_heads)": ", num_heads)",
    },
    "the share is contiguous: else query heads would be without their key heads": {
        "list(range(start + rank * rows, start + (rank + 1) * rows))": (
            "[start + head * head_dim + i for head in range(rank, heads, size) for i in range(head_dim)]"
        )
    },
    "a head has head_dim rows": {" * head_dim": ""},
    "k and v are missing": {f"{KEYS}{VALUES}": ""},
    "v is missing": {VALUES: ""},
}


def _draw_heads(rng: Random) -> Case:
    size = rng.choice((1, 2, 2, 3, 4))
    kv_heads = size * rng.randint(1, 3)
    return kv_heads * rng.randint(1, 3), kv_heads, rng.randint(1, 4), rng.randrange(size), size


register(
    "21.2",
    Comparison(
        [(2, 2, 1, 0, 2), (2, 2, 1, 1, 2), (16, 8, 128, 7, 8), *draw(_draw_heads, 80)],
        as_solved("21.2", QKV_MISTAKES),
        inputs("num_heads", "num_kv_heads", "head_dim", "rank", "size"),
    ),
)

# 21.3

RING = "2 * (size - 1) * (latency + num_bytes / size / bytes_per_s)"
ONE_SHOT = "latency + (size - 1) * num_bytes / bytes_per_s"
REDUCE_MISTAKES = {
    "way": {
        "the messages of a ring wait for each other, and each of them pays the latency": {
            RING: "latency + 2 * (size - 1) * num_bytes / size / bytes_per_s"
        },
        "a ring goes round twice, once for the sums and once to tell them": {"2 * (size - 1) * (": "(size - 1) * ("},
        "many bytes take the ring: in one shot a rank receives those of every other one": {"one_shot <= ring": "True"},
        "equal times: one shot": {"one_shot <= ring": "one_shot < ring"},
    },
    "seconds": {
        "a message of a ring is 1/size of the tensor": {"num_bytes / size / bytes": "num_bytes / bytes"},
        "one shot waits once: the others send at the same time": {
            ONE_SHOT: f"(size - 1) * ({ONE_SHOT[:7]}) + {ONE_SHOT[10:]}"
        },
        "the faster one": {'("one shot", one_shot)': '("one shot", ring)'},
    },
}


def _draw_reduce(rng: Random) -> Case:
    """Draw a tensor and a link in powers of two, whose times are exact, near the size at which the choice turns."""
    size, bytes_per_s = rng.choice((2, 4, 8)), 2.0 ** rng.randint(3, 20)
    return 2 ** rng.randint(0, 24), size, bytes_per_s, 2.0 ** rng.randint(-12, 4)


REDUCES = [(8, 2, 8.0, 1.0), (48, 4, 16.0, 1.0), (960, 4, 16.0, 18.0), *draw(_draw_reduce, 120)]
REDUCED = as_solved_by_name("21.3", REDUCE_MISTAKES)
register("21.3", Comparison(REDUCES, REDUCED, inputs("num_bytes", "size", "bytes_per_s", "latency")))

# 21.4

LINEAR = "torch.nn.functional.linear(x, self.weight, self.bias)"
BIAS_AFTER = ") + (0 if self.bias is None else self.bias)"
LAYER_MISTAKES: dict[str, dict[str, dict[str, str]]] = {
    "what all_reduce gets": {
        "the other rank gets this sum, too, and adds no bias: add the bias before the sum": {
            ", self.bias))": f"){BIAS_AFTER}"
        },
    },
    "forward(x)": {
        "the other rank's part is missing: return what all_reduce returns": {
            f"return self.all_reduce({LINEAR})": f"self.all_reduce({LINEAR})\n        return {LINEAR}"
        },
        "the bias is in the sum already: it is added twice": {"bias))": f"bias){BIAS_AFTER}"},
    },
    "forward(-x), called after it": {},
    "calls of all_reduce": {},
}


def _run_layer(
    answer: Callable[..., Any], x: Rows, weight: Rows, bias: list[float] | None, other: Rows
) -> dict[str, Any]:
    """Run x through a layer, beside a rank that gives `other` to the sum, between layers of the same shape."""
    sums: list[Rows] = []

    def all_reduce(y: Tensor) -> Tensor:
        sums.append(y.tolist())
        return y.add_(torch.tensor(other, dtype=torch.float32))

    def neighbour() -> None:
        answer(torch.full((len(weight), len(x[0])), 7.0), None, lambda y: y)(torch.ones(len(x), len(x[0])))

    given = {"x": x, "weight": weight, "bias": bias}
    held = {name: torch.tensor(m, dtype=torch.float32) for name, m in given.items() if m is not None}
    before = [tensor.clone() for tensor in held.values()]
    neighbour()
    layer = answer(held["weight"], held.get("bias"), all_reduce)
    neighbour()
    got = layer(held["x"])
    if not isinstance(got, Tensor):
        raise Wrong(f"forward must return a tensor, got {type(got).__name__}")
    require_unchanged(before, held.values(), held, ", which is the caller's: make a copy")
    if not sums:
        raise Wrong("all_reduce was not called: the other rank's part is missing")
    values = sums[0], got.tolist(), layer(-held["x"]).tolist(), len(sums) // 2
    return dict(zip(LAYER_MISTAKES, values, strict=True))


def _draw_layer(rng: Random) -> Case:
    n, k, m = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 3)
    bias = rng.choice((None, [rng.randint(1, 5) for _ in range(m)]))
    return _matrix(rng, n, k), _matrix(rng, m, k), bias, _matrix(rng, n, m)


register(
    "21.4",
    Comparison(
        [([[1]], [[2]], None, [[3]]), ([[1]], [[2]], [4], [[3]]), *draw(_draw_layer, 60)],
        as_solved_by_name("21.4", LAYER_MISTAKES, call=_run_layer, torch=torch),
        inputs("x", "weight", "bias", "the other rank's part"),
        call=_run_layer,
    ),
)
