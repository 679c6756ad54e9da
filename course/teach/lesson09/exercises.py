"""Checkers of lesson 09: the busiest thread, fp32 stored in 16 bits, and the learner's own compiled loop."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import numba
import numpy as np
import torch
from torch import Tensor

from roseinfer.kernels.cases import PagedCase, paged_case

from ..exercises.as_solved import as_solved
from ..exercises.attention_checks import LARGE_SCORES, Attention, Batch, attention_comparison, draw_lengths
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.solutions import solution
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Failed, Wrong
from ..measure.kernel_loads import plain_function

# 09.1


def _draw_share(rng: Random) -> tuple[list[int], int, int]:
    lengths = [rng.choice((0, 1, 7, rng.randint(2, 30), 400)) for _ in range(rng.randint(1, 6))]
    return lengths, rng.choice((1, 2, 3, 6, 12)), rng.choice((1, 2, 2, 3, 4, 8, 16))


RUNS = "sum(tokens[a:b]) for a, b in zip(starts, starts[1:], strict=False)"
SHARE_MISTAKES = {
    "that is an even share; tasks are dealt out by their number, not by their tokens": {
        f"max({RUNS})": "-(-sum(tokens) // threads)"
    },
    "tasks are numbered head by head here: task n serves sequence n % len(lengths)": {
        "lengths * num_kv_heads": "[n for n in lengths for _ in range(num_kv_heads)]"
    },
    "threads get runs of consecutive tasks, not tasks in turn": {
        RUNS: "sum(tokens[t::threads]) for t in range(threads)"
    },
    "the remaining tasks go to the first threads, one each": {
        " + min(t, longer) for t in range(threads + 1)]": " for t in range(threads)] + [len(tokens)]"
    },
    "a sequence is a task for each of its KV heads": {" * num_kv_heads": ""},
    "that is its number of tasks; count their tokens": {"sum(tokens": "len(tokens"},
}
SHARED = as_solved("09.1", SHARE_MISTAKES)
register("09.1", Comparison(draw(_draw_share), SHARED, inputs("lengths", "num_kv_heads", "threads")))

# 09.3


def _draw_pattern(rng: Random) -> tuple[list[str], tuple[int, ...]]:
    """Draw float32 numbers by their bits, often half-way between two of bfloat16, infinite, NaN or subnormal."""

    def bits() -> str:
        upper = rng.choice((0, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FFF, rng.getrandbits(15)))
        lower = rng.choice((0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, rng.getrandbits(16)))
        return f"{rng.getrandbits(1) << 31 | upper << 16 | lower:08x}"

    shape = rng.choice(((), (1,), (1,), (3,), (2, 3), (2, 1, 2), (2, 0, 3)))
    return [bits() for _ in range(math.prod(shape))], shape


HALF, RETURNED = "(0x7FFF + (upper & 1)).astype(np.uint32)", "np.where(np.isnan(x), upper | np.uint16(0x0040), rounded)"
BIT_MISTAKES = {
    "the cut turns a NaN whose upper half has no bit after the exponent into infinity; set one": {
        "upper | np.uint16(0x0040)": "upper"
    },
    "the addition carries into the exponent of a NaN, or past it; a NaN must stay a NaN": {RETURNED: "rounded"},
    "the lower half is cut off; round to the nearest": {RETURNED: "upper"},
    "a tie goes to the even number, not always up": {HALF: "np.uint32(0x8000)", RETURNED: "rounded"},
}


@np.errstate(all="ignore")
def _store_with(answer: Callable[..., Any], bits: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """Return an answer's bits in hexadecimal, where all NaN are alike. Its array lies in memory as a transpose does."""
    x = np.asarray(np.array([int(one, 16) for one in bits], np.uint32).view(np.float32).reshape(shape), order="F")
    before = torch.tensor(x)
    got = answer(x)
    require_unchanged([before], [torch.tensor(x)], ["x"])
    if not isinstance(got, (np.ndarray, np.generic)) or got.dtype != np.uint16:
        raise Wrong(f"you return {getattr(got, 'dtype', type(got).__name__)}, expected an array of uint16: the bits")
    if got.shape != shape:
        raise Wrong(f"you return an array of shape {got.shape}, expected {shape}, that of x")
    digits = np.vectorize("{:04x}".format, otypes=[object])(got)
    return np.where(np.asarray(got) & 0x7FFF > 0x7F80, "NaN", digits)


STORED = as_solved("09.3", BIT_MISTAKES, call=_store_with, np=np)
register("09.3", Comparison(draw(_draw_pattern, 150), STORED, inputs("bits of x", "shape"), _store_with))

# 09.2

LEFT = 100.0  # what out holds before, as memory that was used holds anything


def _as_attention(loop: Callable[..., Any]) -> Attention:
    """Wrap a loop so that it takes the arguments of paged_attention_reference."""

    @np.errstate(all="ignore")
    def attention(*given: Tensor) -> Tensor:
        arrays = [tensor.contiguous().clone().numpy() for tensor in given]
        out = np.full_like(arrays[0], LEFT)
        returned = loop(out, *arrays, np.float32(arrays[0].shape[-1] ** -0.5))
        require_unchanged(given, map(torch.from_numpy, arrays), PagedCase._fields, ": only out is written")
        if returned is not None:
            raise Wrong("your loop returns something; write it to out[seq, head] and return nothing")
        return torch.from_numpy(out)

    return attention


def _draw_loop(rng: Random) -> Batch:
    block_size = rng.choice((1, 3, 4, 8))
    lengths = draw_lengths(rng, block_size, most=12, most_seqs=3)
    return Batch(lengths, rng.randint(1, 2), rng.randint(1, 3), rng.choice((2, 4)), block_size, "fp32")


LOOPS = [Batch([300], 1, 1, 2, 1, "fp32"), *LARGE_SCORES, *draw(_draw_loop)]  # 300: block ids over 255
LOOP_MISTAKES = {
    "the scores are not multiplied by `scale`": {" *= scale": " *= 1"},
    "the new token is left out: it is not in the cache yet, its key and value are k and v": {
        "top *= scale": "top = np.float32(-np.inf)",
        "np.float32(1)": "np.float32(0)",
        "v[seq, kv_head].copy()": "np.zeros(head_dim)",
    },
    "the weighted sum is of cached keys: the cached values are in v_cache": {"v_cache[": "k_cache["},
    "a wrong KV head: query head h reads KV head h // group, with group = H // H_kv": {
        "head // group": "head % k.shape[1]"
    },
    "each sequence's last cached token is left out": {"(context_lens[seq])": "(context_lens[seq] - 1)"},
    "every sequence reads the first sequence's blocks: its own row is block_table[seq]": {"table[seq": "table[0"},
    "when a larger score comes, acc must shrink by exp(top - new_top)": {"acc[d] * shrink": "acc[d]"},
}
IN_PYTHON = partial(solution, "09.2", math=math, np=np, prange=range, njit=lambda **options: lambda loop: loop)
LOOPED = attention_comparison(LOOPS, {why: _as_attention(IN_PYTHON(edits)) for why, edits in LOOP_MISTAKES.items()})


@exercise("09.2", LOOPED)
def own_loop(answer: Any) -> None:
    if not getattr(answer, "targetoptions", {}).get("parallel"):
        raise Wrong("expected a function under @njit(parallel=True): without it, prange is one thread's range")
    plain = plain_function(answer)
    LOOPED(_as_attention(plain))
    _require_tasks(plain)
    try:
        LOOPED(_as_attention(answer))
    except Failed:
        raise  # by Numba: the loop is right as plain Python
    except Wrong as wrong:
        raise Wrong(f"right as plain Python, wrong when compiled: {wrong}") from wrong


def _require_tasks(plain: Callable[..., Any]) -> None:
    """Raise Wrong unless each row of `out` has a task of its own, and no two tasks write to the same place.

    A race between threads may be won by chance, so the tasks run one after the other here.
    """
    out_name = plain.__code__.co_varnames[0]
    loops: list[dict[str, list[np.ndarray]]] = []  # of each prange: array -> where each of its tasks changes it
    is_inside = False

    def tasks(_: Any, *bounds: int) -> Iterator[int]:
        nonlocal is_inside
        if is_inside:  # Numba runs a prange inside of another as a range
            yield from range(*bounds)
            return
        arrays = {name: value for name, value in sys._getframe(1).f_locals.items() if isinstance(value, np.ndarray)}
        changes: dict[str, list[np.ndarray]] = {name: [] for name in arrays}
        loops.append(changes)
        for task in range(*bounds):
            before = {name: array.copy() for name, array in arrays.items()}
            is_inside = True
            yield task
            is_inside = False
            for name, array in arrays.items():
                changes[name].append(~np.isclose(array, before[name], rtol=0, atol=0, equal_nan=True))

    with patch.object(numba.prange, "__new__", tasks):
        out = _as_attention(plain)(*paged_case([9, 3, 0], group=2, head_dim=4, block_size=4))
    num_rows = out.size(0) * out.size(1)
    written = [int(changed.any(-1).sum()) for changes in loops for changed in changes[out_name]]
    if sum(written) < num_rows or max(written) > 1:
        raise Wrong(
            f"the values are right, but a task of prange writes up to {max(written, default=0)} rows of out, and all "
            f"tasks together write {sum(written)} of {num_rows}: loop with prange over one task for each (sequence, "
            "query head), and with no prange inside of another, which is a range"
        )
    for name, changed in (item for changes in loops for item in changes.items()):
        if (np.sum(changed, axis=0) > 1).any():
            raise Wrong(f"tasks run side by side, and more than one writes to {name}: make it inside the prange")
