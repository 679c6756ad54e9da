"""Checkers of lesson 18: a product for one row, a norm fused into it, a race, and the learner's own product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.exercise import exercise
from ..exercises.wrong import Wrong
from .loop_checks import LEFT, Arrays, UpToMachineCode, explain_values, num_allocations, require_compiled, run_loops


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _empty(*shape: int) -> np.ndarray:
    return np.full(shape, LEFT, np.float32)


def _tensors(arrays: Arrays) -> list[Tensor]:
    return [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arrays.items() if name != "out"]


# 18.1

Shape = tuple[int, int, int]  # rows of the weight, values in each, seed


def _one_row(num_rows: int, width: int, seed: int) -> Arrays:
    return {
        "out": _empty(num_rows),
        "x": _random(seed, width),
        "weight": _random(seed + 1, num_rows, width),
        "bias": _random(seed + 2, num_rows),
    }


def _product(*case: int, change: Callable[..., Tensor] = F.linear) -> Tensor:
    return change(*_tensors(_one_row(*case)))


ROW_MISTAKES: dict[str, Callable[..., Tensor]] = {
    "the bias is missing": lambda x, w, b: w @ x,
    "the bias is added once for each product": lambda x, w, b: w @ x + w.size(1) * b,
    "out holds what was in memory before: write to it, do not add to it": lambda x, w, b: w @ x + b + LEFT,
    "the total must begin at 0 for each row of the weight": lambda x, w, b: (w @ x).cumsum(0) + b,
    "the last column of the weight is left out": lambda x, w, b: w[:, :-1] @ x[:-1] + b,
    "the first column of the weight is left out": lambda x, w, b: w[:, 1:] @ x[1:] + b,
}
ROWS: list[Shape] = [(1, 1, 0), (2, 1, 1), (1, 3, 2), (3, 3, 3), (4, 9, 4), (257, 2, 5), (3, 770, 6)]
ROWS += draw(lambda rng: (rng.randint(1, 6), rng.randint(1, 9), rng.randint(0, 99)))
ONE_ROW = Comparison(
    ROWS,
    Expected(_product, {why: partial(_product, change=own) for why, own in ROW_MISTAKES.items()}, explain_values),
    inputs("rows of weight", "its columns", "seed"),
    call=run_loops(_one_row, "weight"),
)


@exercise("18.1", ONE_ROW)
def product_for_one_row(answer: Any) -> None:
    ONE_ROW(answer)
    require_compiled(answer, _one_row, _product, 3, 5, 0)


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


def _norm_product(
    *case: int,
    normed: Callable[[Tensor, Tensor, float], Tensor] = lambda x, norm, eps: F.layer_norm(
        x, x.shape, norm[0], norm[1], eps
    ),
) -> Tensor:
    x, norm, eps, weight, bias = _tensors(_normed(*case))
    return F.linear(normed(x, norm, float(eps)), weight, bias)


def _by_hand(
    x: Tensor, norm: Tensor, eps: float, minus: bool = True, gain: bool = True, shift: bool = True, fewer: int = 0,
    eps_outside: bool = False, no_eps: bool = False,
) -> Tensor:  # fmt: skip
    centred = x - x.mean()
    variance = (centred**2).sum() / max(len(x) - fewer, 1)
    root = variance.sqrt() + (eps if eps_outside else 0)
    scale = 1 / (root if eps_outside or no_eps else (variance + eps).sqrt())
    return (centred if minus else x) * scale * (norm[0] if gain else 1) + (norm[1] if shift else 0)


BY_HAND: dict[str, dict[str, Any]] = {
    "the norm's own bias, norm[1], is missing": {"shift": False},
    "the norm's own weight, norm[0], is missing": {"gain": False},
    "the mean is subtracted from every value of x": {"minus": False},
    "the variance is the mean of the squares: divide by the number of values, not by one less": {"fewer": 1},
    "eps is added to the variance, under the root": {"eps_outside": True},
    "eps is missing": {"no_eps": True},
}
NORM_MISTAKES: dict[str, Callable[..., Tensor]] = {
    **{why: partial(_norm_product, normed=partial(_by_hand, **how)) for why, how in BY_HAND.items()},
    "eps is an argument, not always 1e-5": partial(_norm_product, normed=lambda x, norm, eps: _by_hand(x, norm, 1e-5)),
    "out holds what was in memory before: write to it, do not add to it": lambda *case: _norm_product(*case) + LEFT,
    "the bias of the product is missing": lambda *case: _norm_product(*case) - torch.from_numpy(_normed(*case)["bias"]),
}
NORM_SHAPES: list[Shape] = [(1, 2, 0), (2, 3, 1), (4, 8, 2), (257, 2, 3), (2, 770, 6)]
NORM_SHAPES += draw(lambda rng: (rng.randint(1, 5), rng.randint(2, 9), rng.randint(0, 99)))
NORMED = Comparison(
    NORM_SHAPES,
    Expected(_norm_product, NORM_MISTAKES, explain_values),
    inputs("rows of weight", "its columns", "seed"),
    call=run_loops(_normed, "weight"),
)


@exercise("18.2", NORMED)
def norm_fused_in(answer: Any) -> None:
    NORMED(answer)
    require_compiled(answer, _normed, _norm_product, 3, 5, 0)
    if made := num_allocations(answer, _normed(3, 5, 0)):
        raise Wrong(
            f"the values are right, but its machine code asks for memory for new arrays in {made} "
            f"place{'s' if made > 1 else ''}. Keep single numbers: a normalised value goes into the sum at once"
        )


# 18.3

Prompt = tuple[int, int, int]  # tokens, values of a head, seed
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


def _causal(*case: int, seen: Callable[[Tensor], Tensor] = torch.tril) -> Tensor:
    q, k, v = _tensors(_prompt(*case))[:3]
    scores = (q @ k.T).masked_fill(~seen(torch.ones(len(q), len(q))).bool(), -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ v


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


RACE_MISTAKES = {
    "every token attends to the whole prompt; token n sees tokens 0 to n": partial(_causal, seen=torch.ones_like),
    "a token attends to itself, too: up to n, with n": partial(_causal, seen=partial(torch.tril, diagonal=-1)),
}
PROMPTS: list[Prompt] = [(1, 1, 0), (2, 2, 1), (3, 2, 2), (5, 4, 3), (5, 4, LARGE), (7, 4, LARGE + 1), (66, 2, 4)]
PROMPTS += draw(lambda rng: (rng.randint(1, 7), rng.choice((1, 2, 4)), rng.randint(0, 99)))
RACE = Comparison(
    PROMPTS,
    Expected(_causal, RACE_MISTAKES, explain_values),
    inputs("tokens", "values of a head", "seed"),
    call=_with_cache,
)


@exercise("18.3", RACE)
def without_a_race(answer: Any) -> None:
    RACE(answer)
    require_compiled(answer, _prompt, _causal, 5, 4, 0, compiler=UpToMachineCode)


# 18.4

TOGETHER = 4  # rows of x that a value of the weight serves when it is loaded
Batch = tuple[int, int, int, int]  # rows of x, rows of the weight, values in each, seed


def _rows(num_seqs: int, num_rows: int, width: int, seed: int) -> Arrays:
    one = _one_row(num_rows, width, seed)
    return one | {"out": _empty(num_seqs, num_rows), "x": _random(seed, num_seqs, width)}


def _batch_product(*case: int, change: Callable[..., Tensor] = F.linear) -> Tensor:
    return change(*_tensors(_rows(*case)))


def _most_reads(num_seqs: int, num_rows: int, width: int, seed: int) -> int:
    return (num_seqs // TOGETHER + num_seqs % TOGETHER) * num_rows * width


def _without_rest(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = F.linear(x, weight, bias)
    out[len(x) - len(x) % TOGETHER :] = LEFT
    return out


def _draw_batch(rng: Random) -> Batch:
    return rng.randint(1, 9), rng.randint(1, 4), rng.randint(1, 6), rng.randint(0, 99)


OWN_MISTAKES = {
    why: partial(_batch_product, change=own)
    for why, own in {
        "the bias is missing": lambda x, w, b: F.linear(x, w),
        "out holds what was in memory before: write to it, do not add to it": lambda x, w, b: F.linear(x, w, b) + LEFT,
        f"the rows after the last whole group of {TOGETHER} are not computed": _without_rest,
    }.items()
}
BATCHES: list[Batch] = [(1, 1, 1, 0), (4, 1, 2, 1), (5, 2, 3, 2), (8, 2, 2, 3), (3, 3, 3, 4), (5, 257, 2, 5)]
BATCHES += [(70, 2, 3, 6), *draw(_draw_batch)]
OWN = Comparison(
    BATCHES,
    Expected(_batch_product, OWN_MISTAKES, explain_values),
    inputs("rows of x", "rows of weight", "its columns", "seed"),
    call=run_loops(_rows, "weight", most_reads=_most_reads),
)


@exercise("18.4", OWN)
def own_product(answer: Any) -> None:
    OWN(answer)
    require_compiled(answer, _rows, _batch_product, 5, 7, 9, 0)
