"""Checkers of lesson 18: a product for one row, a norm fused into it, a race, and the learner's own product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import numpy as np
from torch import Tensor

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Call, Case, Comparison, draw, inputs
from ..exercises.exercise import register
from ..exercises.wrong import Wrong
from .loop_checks import LEFT, Arrays, Make, explain_values, num_allocations, output_of, require_compiled, run_loops


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _empty(*shape: int) -> np.ndarray:
    return np.full(shape, LEFT, np.float32)


def _register(
    exercise_id: str,
    sizes: tuple[str, ...],
    cases: list[Case],
    make: Make,
    mistakes: Mapping[str, Mapping[str, str]],
    call: Call,
    compiled: Case,
    also: Callable[[Any], None] = lambda answer: None,
) -> None:
    """Register a checker that runs the loops of an answer as plain Python, then compiled on one case, then `also`."""
    expected = as_solved(exercise_id, mistakes, explain_values, partial(output_of, make), np=np, prange=range)
    comparison = Comparison(cases, expected, inputs(*sizes, "seed"), call)

    def check(answer: Any) -> None:
        comparison(answer)
        require_compiled(answer, make(*compiled), expected.right(*compiled))
        also(answer)

    register(exercise_id, check, comparison)


NO_BIAS = {" + bias[m]": ""}
ADDED_TO = "out holds what was in memory before: write to it, do not add to it"

# 18.1


def _one_row(num_rows: int, width: int, seed: int) -> Arrays:
    return {
        "out": _empty(num_rows),
        "x": _random(seed, width),
        "weight": _random(seed + 1, num_rows, width),
        "bias": _random(seed + 2, num_rows),
    }


_register(
    "18.1",
    ("rows of weight", "its columns"),
    [(257, 2, 5), (3, 770, 6), *draw(lambda rng: (rng.randint(1, 6), rng.randint(1, 9), rng.randint(0, 99)))],
    _one_row,
    {
        "the bias is missing": NO_BIAS,
        "the bias is added once for each product": {"* x[k]": "* x[k] + bias[m]", "total + bias[m]": "total"},
        ADDED_TO: {"out[m] = ": "out[m] += "},
        "the total must begin at 0 for each row of the weight": {
            "for m in prange(len(weight)):\n        total = np.float32(0)": (
                "total = np.float32(0)\n    for m in prange(len(weight)):"
            )
        },
    },
    run_loops(_one_row, "weight"),
    (3, 5, 0),
)


# 18.2


def _normed(num_rows: int, width: int, seed: int) -> Arrays:
    return {
        "out": _empty(num_rows),
        "x": np.float32((3, 0.3, 0)[seed % 3]) * _random(seed, width) + 2,
        "norm": _random(seed + 3, 2, width),
        "eps": np.float32((0.1, 0.01)[seed % 2]),
        "weight": _random(seed + 1, num_rows, width),
        "bias": _random(seed + 2, num_rows),
    }


def _require_no_arrays(answer: Any) -> None:
    if made := num_allocations(answer, _normed(3, 5, 0)):
        raise Wrong(
            f"the values are right, but its machine code asks for memory for new arrays in {made} "
            f"place{'s' if made > 1 else ''}. Keep single numbers: a normalised value goes into the sum at once"
        )


VARIANCE = "squares / np.float32(len(x))"
_register(
    "18.2",
    ("rows of weight", "its columns"),
    [(257, 2, 3), (2, 770, 6), *draw(lambda rng: (rng.randint(1, 5), rng.randint(2, 9), rng.randint(0, 99)))],
    _normed,
    {
        "the norm's own bias, norm[1], is missing": {" + norm[1, k]": ""},
        "the norm's own weight, norm[0], is missing": {" * norm[0, k]": ""},
        "the mean is subtracted from every value of x": {"((x[k] - mean) * scale": "(x[k] * scale"},
        "the variance is the mean of the squares: divide by the number of values, not by one less": {
            VARIANCE: "squares / np.float32(len(x) - 1)"
        },
        "eps is added to the variance, under the root": {f"np.sqrt({VARIANCE} + eps)": f"(np.sqrt({VARIANCE}) + eps)"},
        "eps is missing": {" + eps": ""},
        "eps is an argument, not always 1e-5": {" + eps": " + np.float32(1e-5)"},
        ADDED_TO: {"out[m] = ": "out[m] += "},
        "the bias of the product is missing": NO_BIAS,
    },
    run_loops(_normed, "weight"),
    (3, 5, 0),
    _require_no_arrays,
)


# 18.3

LARGE = 100  # seeds from here on: scores beyond those that exp holds, so the largest one has to be subtracted


def _prompt(num_tokens: int, head_dim: int, seed: int) -> Arrays:
    slots = np.random.default_rng(seed).permutation(num_tokens + 3)[:num_tokens].astype(np.int32)
    q, k, v = (_random(seed + i, num_tokens, head_dim) for i in range(3))
    return {
        "out": _empty(num_tokens, head_dim),
        **{"q": q * np.float32(25 if seed >= LARGE else 1), "k": k, "v": v},
        **{name: np.full((num_tokens + 3, head_dim), np.nan, np.float32) for name in ("k_cache", "v_cache")},
        "slots": slots,
    }


def _with_cache(answer: Callable[..., Any], *case: int) -> Tensor:
    """Check the cache that an answer writes, and return what comes out."""
    kept: Arrays = {}

    def make(*case: int) -> Arrays:
        kept.update(_prompt(*case))
        return kept

    out = run_loops(make, "q", changes=("out", "k_cache", "v_cache"))(answer, *case)
    for new, cache in (("k", "k_cache"), ("v", "v_cache")):
        right = np.full_like(kept[cache], np.nan)
        right[kept["slots"]] = kept[new]
        if not np.array_equal(right, kept[cache], equal_nan=True):
            raise Wrong(f"{cache} must hold row n of {new} in slot slots[n], and be unchanged elsewhere")
    return out


_register(
    "18.3",
    ("tokens", "values of a head"),
    [
        *((5, 4, LARGE), (7, 4, LARGE + 1), (66, 2, 4)),
        *draw(lambda rng: (rng.randint(1, 7), rng.choice((1, 2, 4)), rng.randint(0, 99))),
    ],
    _prompt,
    {
        "every token attends to the whole prompt; token n sees tokens 0 to n": {"n + 1": "len(q)"},
        "a token attends to itself, too: up to n, with n": {"weights = ": "weights = (np.arange(n + 1) < n) * "},
    },
    _with_cache,
    (5, 4, 0),
)


# 18.4

TOGETHER = 4  # rows of x that a value of the weight serves when it is loaded


def _rows(num_seqs: int, num_rows: int, width: int, seed: int) -> Arrays:
    one = _one_row(num_rows, width, seed)
    return one | {"out": _empty(num_seqs, num_rows), "x": _random(seed, num_seqs, width)}


def _most_reads(num_seqs: int, num_rows: int, width: int, seed: int) -> int:
    return (num_seqs // TOGETHER + num_seqs % TOGETHER) * num_rows * width


def _draw_batch(rng: Random) -> Case:
    return rng.randint(1, 9), rng.randint(1, 4), rng.randint(1, 6), rng.randint(0, 99)


_register(
    "18.4",
    ("rows of x", "rows of weight", "its columns"),
    [(8, 2, 2, 3), (5, 257, 2, 5), (70, 2, 3, 6), *draw(_draw_batch)],
    _rows,
    {
        "the bias is missing": NO_BIAS,
        ADDED_TO: {", m] = ": ", m] += "},
        f"the rows after the last whole group of {TOGETHER} are not computed": {"range(len(x) // 4 * 4, len(x))": "()"},
    },
    run_loops(_rows, "weight", most_reads=_most_reads),
    (5, 7, 9, 0),
)
