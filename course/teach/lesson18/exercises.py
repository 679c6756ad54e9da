"""Checkers of lesson 18: a product for one row, a norm folded into it, a race, and the learner's own product."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch

from ..exercises.as_solved import as_solved_by_name
from ..exercises.drawn import Case, Comparison, draw, inputs
from ..exercises.exercise import register
from ..exercises.explain import explain_tensor
from ..exercises.wrong import Wrong
from .loop_checks import Arrays, register_loops


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _used(*shape: int) -> np.ndarray:
    """Make an array that holds old numbers, as memory that was used does."""
    return np.full(shape, 100, np.float32)


NO_BIAS = {" + bias[m]": ""}
ADDED_TO = "out holds what was in memory before: write to it, do not add to it"

# 18.1


def _one_row(num_rows: int, width: int, seed: int) -> Arrays:
    return {
        "out": _used(num_rows),
        "x": _random(seed, width),
        "weight": _random(seed + 1, num_rows, width),
        "bias": _random(seed + 2, num_rows),
    }


def _draw_sizes(rng: Random) -> Case:
    return rng.randint(1, 6), rng.randint(2, 9), rng.randint(0, 99)


ROW_MISTAKES = {
    "the bias is missing": NO_BIAS,
    ADDED_TO: {"out[m] = ": "out[m] += "},
    "the total must begin at 0 for each row of the weight": {
        "for m in prange(len(weight)):\n        total = np.float32(0)": (
            "total = np.float32(0)\n    for m in prange(len(weight)):"
        )
    },
}
SIZES = ("rows of weight", "its columns")
PRODUCTS = [(257, 2, 5), (3, 770, 6), (2, 1, 0), *draw(_draw_sizes)]
register_loops("18.1", _one_row, SIZES, PRODUCTS, "weight", {"out": ROW_MISTAKES})

# 18.2


def _fold_with(answer: Callable[..., Any], num_rows: int, width: int, seed: int) -> dict[str, Any]:
    """Call an answer to 18.2 on random arrays, of which it must change none, and name what it returns."""
    norm, weight, bias = _random(seed, 2, width), _random(seed + 1, num_rows, width), _random(seed + 2, num_rows)
    handed = norm.copy(), weight.copy(), bias.copy()
    got = answer(*handed)
    for name, before, after in zip(("norm", "weight", "bias"), (norm, weight, bias), handed, strict=True):
        if not np.array_equal(before, after):
            raise Wrong(f"{name} was handed in, and you have changed it")
    if not isinstance(got, (tuple, list)) or [type(each) for each in got] != [np.ndarray] * 2:
        raise Wrong(f"expected two NumPy arrays, (weight, bias), got {type(got).__name__}")
    return {name: torch.from_numpy(each) for name, each in zip(("weight", "bias"), got, strict=True)}


FOLD_MISTAKES = {
    "weight": {
        "each row is multiplied by one value of norm[0]; each column meets its own value of z": {
            "weight * norm[0]": "(weight.T * np.resize(norm[0], len(weight))).T"
        },
        "norm[0] belongs into the weight: z is not multiplied by it any more": {"weight * norm[0]": "weight * 1"},
        "norm[0] multiplies, it is not added": {"weight * norm[0]": "weight + norm[0]"},
    },
    "bias": {
        "norm[1] goes through the product, too": {"weight @ norm[1] + bias": "np.resize(norm[1], len(bias)) + bias"},
        "norm[1] is missing": {"weight @ norm[1] + bias": "bias * 1"},
        "the product's own bias is missing": {" + bias": ""},
        "norm[1] is added after norm[0] has multiplied z: it is not multiplied by norm[0]": {
            "weight @ norm[1]": "(weight * norm[0]) @ norm[1]"
        },
    },
}
FOLDED = as_solved_by_name("18.2", FOLD_MISTAKES, explain_tensor, _fold_with, np=np)
register("18.2", Comparison([(3, 770, 6), *draw(_draw_sizes)], FOLDED, inputs(*SIZES, "seed"), _fold_with))

# 18.3

LARGE = 100  # seeds from here on: scores beyond those that exp holds, so the largest one has to be subtracted


def _prompt(num_tokens: int, head_dim: int, seed: int) -> Arrays:
    slots = np.random.default_rng(seed).permutation(num_tokens + 3)[:num_tokens].astype(np.int32)
    q, k, v = (_random(seed + i, num_tokens, head_dim) for i in range(3))
    return {
        "out": _used(num_tokens, head_dim),
        **{"q": q * np.float32(25 if seed >= LARGE else 1), "k": k, "v": v},
        **{name: np.full((num_tokens + 3, head_dim), np.nan, np.float32) for name in ("k_cache", "v_cache")},
        "slots": slots,
    }


ATTEND_MISTAKES = {
    "every token attends to the whole prompt; token n sees tokens 0 to n": {"n + 1": "len(q)"},
    "a token attends to itself, too: up to n, with n": {"weights = ": "weights = (np.arange(n + 1) < n) * "},
}
CACHE_MISTAKES = {"token n is written to slots[n], not to n": {"cache[slots[n]]": "cache[n]"}}
PROMPTS = [
    *((5, 4, LARGE), (7, 4, LARGE + 1), (66, 2, 4)),
    *draw(lambda rng: (rng.randint(1, 7), rng.choice((1, 2, 4)), rng.randint(0, 99))),
]
WRITTEN = {"k_cache": CACHE_MISTAKES, "v_cache": CACHE_MISTAKES, "out": ATTEND_MISTAKES}
register_loops("18.3", _prompt, ("tokens", "values of a head"), PROMPTS, "q", WRITTEN)

# 18.4

TOGETHER = 4  # rows of x that a value of the weight serves when it is loaded


def _rows(num_seqs: int, num_rows: int, width: int, seed: int) -> Arrays:
    one = _one_row(num_rows, width, seed)
    return one | {"out": _used(num_seqs, num_rows), "x": _random(seed, num_seqs, width)}


def _most_reads(num_seqs: int, num_rows: int, width: int, seed: int) -> int:
    return (num_seqs // TOGETHER + num_seqs % TOGETHER) * num_rows * width


OWN_MISTAKES = {
    "the bias is missing": NO_BIAS,
    ADDED_TO: {", m] = ": ", m] += "},
    f"the rows after the last whole group of {TOGETHER} are not computed": {"range(len(x) // 4 * 4, len(x))": "()"},
}
BATCHES = [(5, 257, 2, 5), (70, 2, 3, 6), *draw(lambda rng: (rng.randint(1, 9), *_draw_sizes(rng)))]
register_loops("18.4", _rows, ("rows of x", *SIZES), BATCHES, "weight", {"out": OWN_MISTAKES}, _most_reads)
