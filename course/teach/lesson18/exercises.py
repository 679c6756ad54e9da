"""Checkers of lesson 18: a product for one row, a norm fused into it, a race, and the learner's own product."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from ..exercises.drawn import Case, draw
from ..exercises.wrong import Wrong
from .loop_checks import Arrays, num_allocations, register_loops


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


def _normed(num_rows: int, width: int, seed: int) -> Arrays:
    arrays = _one_row(num_rows, width, seed)
    x = np.float32((3, 0.3, 0)[seed % 3]) * arrays.pop("x") + 2
    if seed % 3 == 1:  # a mean that is large beside the deviation, and exact
        x = 300 + np.round(16 * (x - x[::-1])) / 16
    norm, eps = _random(seed + 3, 2, width), np.float32((0.1, 0.01)[seed % 2])
    return {"out": arrays.pop("out"), "x": x, "norm": norm, "eps": eps, **arrays}


def _require_no_arrays(answer: Any) -> None:
    if made := num_allocations(answer, _normed(3, 5, 0)):
        raise Wrong(
            f"the values are right, but its machine code asks for memory for new arrays in {made} "
            f"place{'s' if made > 1 else ''}. Keep single numbers: a normalised value goes into the sum at once"
        )


VARIANCE = "squares / np.float32(len(x))"
NORM_MISTAKES = {
    "the norm's own bias, norm[1], is missing": {" + norm[1, k]": ""},
    "the variance is the mean of the squares: divide by the number of values, not by one less": {
        VARIANCE: "squares / np.float32(len(x) - 1)"
    },
    "eps is added to the variance, under the root": {f"np.sqrt({VARIANCE} + eps)": f"(np.sqrt({VARIANCE}) + eps)"},
    "eps is an argument, not always 1e-5": {" + eps": " + np.float32(1e-5)"},
    ADDED_TO: {"out[m] = ": "out[m] += "},
    "the bias of the product is missing": NO_BIAS,
}
NORMED = [(257, 2, 3), (2, 770, 6), *draw(_draw_sizes)]
register_loops("18.2", _normed, SIZES, NORMED, "weight", {"out": NORM_MISTAKES}, also=_require_no_arrays)

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
