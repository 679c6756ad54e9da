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

from roseinfer.kernels.cases import paged_case

from ..exercises.as_solved import as_solved
from ..exercises.attention_checks import LARGE_SCORES, Attention, Batch, attention_comparison, draw_lengths
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.solutions import solution
from ..exercises.wrong import Failed, Wrong
from ..measure.kernel_loads import plain_function

# 09.1

Share = tuple[list[int], int, int]  # cached tokens of each sequence, KV heads, threads


def _draw_share(rng: Random) -> Share:
    lengths = [rng.choice((0, 1, 7, rng.randint(2, 30), 400)) for _ in range(rng.randint(1, 6))]
    return lengths, rng.choice((1, 2, 3, 6, 12)), rng.choice((1, 2, 2, 3, 4, 8, 16))


SHARES: list[Share] = [([5], 1, 1), ([5, 3], 1, 4), ([9, 1], 2, 3), ([1, 9, 2], 1, 2), *draw(_draw_share)]
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
    "that is the sum of all threads": {"max(sum(": "sum(sum("},
}
register("09.1", Comparison(SHARES, as_solved("09.1", SHARE_MISTAKES), inputs("lengths", "num_kv_heads", "threads")))

# 09.3

Pattern = tuple[list[int], tuple[int, ...]]  # bits of float32 numbers, the array's shape


def _draw_pattern(rng: Random) -> Pattern:
    """Draw bits: any; ordinary numbers; numbers half-way between two of bfloat16 or next to that; subnormal; NaN."""
    shape = rng.choice(((1,), (3,), (2, 3), (2, 1, 2), ()))
    kinds = (
        lambda: rng.getrandbits(32),
        lambda: int(np.float32(rng.uniform(-3, 3)).view(np.uint32)),
        lambda: (rng.randint(0x3F00, 0x4100) << 16) | rng.choice((0x0001, 0x7FFF, 0x8000, 0x8001)),
        lambda: (rng.getrandbits(1) << 31) | rng.randint(1, 0x7FFFFF),
        lambda: (rng.getrandbits(1) << 31) | 0x7F800000 | rng.randint(1, 0x7FFFFF),
    )
    return [rng.choice(kinds)() for _ in range(math.prod(shape))], shape


PATTERNS: list[Pattern] = [
    # 1, what rounds up, both ties
    *(([bits], (1,)) for bits in (0x3F800000, 0x3F80C000, 0x3F808000, 0x3F818000)),
    # infinity, the largest numbers, NaN that an addition or a cut would lose, 0 and -0
    *(([bits], (1,)) for bits in (0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F7F7FFF, 0x7FFFFFFF, 0x7F800001)),
    *(([bits], (1,)) for bits in (0xFFFFFFFF, 0xFFFF8000, 0xFF800001, 0, 0x80000000)),
    ([], (2, 0, 3)),
    *draw(_draw_pattern),
]
HALF, RETURNED = "(0x7FFF + (upper & 1)).astype(np.uint32)", "np.where(np.isnan(x), upper | np.uint16(0x0040), rounded)"
BIT_MISTAKES = {
    "the cut turns a NaN whose upper half has no bit after the exponent into infinity; set one": {
        "upper | np.uint16(0x0040)": "upper"
    },
    "the addition carries into the exponent of a NaN, or past it; a NaN must stay a NaN": {RETURNED: "rounded"},
    "the lower half is cut off; round to the nearest": {RETURNED: "upper"},
    "a tie goes to the even number, not always up": {HALF: "np.uint32(0x8000)", RETURNED: "rounded"},
    "a tie goes to the even number, not always down": {HALF: "np.uint32(0x7FFF)", RETURNED: "rounded"},
    "those are float16's bits; bfloat16 has the exponent of a float32, and 7 bits after it": {
        RETURNED: "x.astype(np.float16).view(np.uint16)"
    },
}


@np.errstate(all="ignore")
def _store_with(answer: Callable[..., Any], bits: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """Return an answer's bits in hexadecimal, where all NaN are alike.

    Its array has the dimensions in memory the other way round, as a transpose has them.
    """
    x = np.asarray(np.array(bits, dtype=np.uint32).view(np.float32).reshape(shape), order="F")
    before = x.copy()
    got = answer(x)
    if not np.array_equal(x, before, equal_nan=True):
        raise Wrong("x was handed in, and you have changed it")
    if not isinstance(got, (np.ndarray, np.generic)) or got.dtype != np.uint16:
        raise Wrong(f"you return {getattr(got, 'dtype', type(got).__name__)}, expected an array of uint16: the bits")
    found = np.asarray(got)
    digits = np.vectorize("{:04x}".format, otypes=[object])(found)
    return np.where(found & 0x7FFF > 0x7F80, "NaN", digits)


register(
    "09.3",
    Comparison(
        PATTERNS,
        as_solved("09.3", BIT_MISTAKES, call=_store_with, np=np),
        lambda bits, shape: f"x with the bits {' '.join(f'{n:08x}' for n in bits)}, shape {shape}",
        call=_store_with,
    ),
)

# 09.2

LEFT = 100.0  # what out holds before, as memory that was used holds anything
ARGUMENTS = ("q", "k", "v", "k_cache", "v_cache", "block_table", "context_lens")


def _as_attention(loop: Callable[..., Any]) -> Attention:
    """Wrap a loop so that it takes the arguments of paged_attention_reference."""

    def attention(q: Tensor, *rest: Tensor) -> Tensor:
        arrays = [tensor.contiguous().numpy() for tensor in (q, *rest)]
        out = np.full_like(arrays[0], LEFT)
        before = [array.copy() for array in arrays]
        returned = loop(out, *arrays, np.float32(q.size(-1) ** -0.5))
        for name, array, old in zip(ARGUMENTS, arrays, before, strict=True):
            if not np.array_equal(array, old, equal_nan=array.dtype == np.float32):
                raise Wrong(f"{name} was handed in, and you have changed it: only out is written")
        if returned is not None:
            raise Wrong("your loop returns something; write it to out[seq, head] and return nothing")
        return torch.from_numpy(out)

    return attention


def _draw_loop(rng: Random) -> Batch:
    block_size = rng.choice((1, 3, 4, 8))
    lengths = draw_lengths(rng, block_size, most=12, most_seqs=3)
    return lengths, rng.randint(1, 2), rng.randint(1, 3), rng.choice((2, 4)), block_size, "fp32"


LOOPS: list[Batch] = [
    ([0], 1, 1, 4, 8, "fp32"),
    ([9, 16, 3], 2, 2, 4, 8, "fp32"),
    ([5, 60], 2, 3, 4, 4, "fp32"),
    ([300], 1, 1, 2, 1, "fp32"),  # block ids over 255
    *LARGE_SCORES,
    *draw(_draw_loop),
]
LOOP_MISTAKES = {
    "scale": "the scores are not multiplied by `scale`",
    "new": "the new token is left out: it is not in the cache yet, its key and value are k and v",
    "v": "the weighted sum is of keys: the values are in v and v_cache",
    "v_cache": "the weighted sum is of cached keys: the cached values are in v_cache",
    "head": "a wrong KV head: query head h reads KV head h // group, with group = H // H_kv",
    "last": "each sequence's last cached token is left out",
    "first block": "every token is looked up in the sequence's first block: the column is position // block_size",
    "row": "every sequence reads the first sequence's blocks: its own row is block_table[seq]",
    "one block": "only each sequence's first block is read: its row of the table names more",
}
ACC, TOTAL = {"acc[d] * shrink": "acc[d]"}, {"total * shrink": "total"}
LARGER_SCORE = {
    "when a larger score comes, acc must shrink by exp(top - new_top)": ACC,
    "when a larger score comes, acc and total must shrink by exp(top - new_top)": ACC | TOTAL,
    "out holds what was in memory before: write to it, do not add to it": {"] = acc[d] / total": "] += acc[d] / total"},
}
IN_PYTHON = partial(solution, "09.2", math=math, np=np, prange=range, njit=lambda **options: lambda loop: loop)
WALKS = {why: _as_attention(IN_PYTHON(changes)) for why, changes in LARGER_SCORE.items()}
LOOPED = attention_comparison(LOOPS, LOOP_MISTAKES, walks=WALKS)


@exercise("09.2", LOOPED)
def own_loop(answer: Any) -> None:
    if not hasattr(answer, "py_func"):
        raise Wrong(f"expected a function under @njit(parallel=True), got {type(answer).__name__}")
    if not answer.targetoptions.get("parallel"):
        raise Wrong("expected parallel=True in @njit(...): without it, prange is one thread's range")
    plain = plain_function(answer)
    with np.errstate(all="ignore"):
        LOOPED(_as_attention(plain))
        _require_tasks(plain)
    _require_compiled(answer)


def _require_tasks(plain: Callable[..., Any]) -> None:
    """Raise Wrong unless each row of `out` has a task of its own, and no two tasks write to the same other array.

    A race between threads may be won by chance, so the tasks run one after the other here.
    """
    written: dict[str, list[set[tuple[int, ...]]]] = {}  # array -> the places in it that each task has changed
    is_inside = False

    def tasks(_: Any, *bounds: int) -> Iterator[int]:
        nonlocal is_inside
        if is_inside:  # Numba runs a prange inside of another as a range
            yield from range(*bounds)
            return
        arrays = {name: value for name, value in sys._getframe(1).f_locals.items() if isinstance(value, np.ndarray)}
        for task in range(*bounds):
            before = {name: array.copy() for name, array in arrays.items()}
            is_inside = True
            yield task
            is_inside = False
            for name, array in arrays.items():
                changed = ~np.isclose(array, before[name], rtol=0.0, atol=0.0, equal_nan=True)
                written.setdefault(name, []).append({tuple(place) for place in np.argwhere(changed).tolist()})

    with patch.object(numba.prange, "__new__", tasks):
        out = _as_attention(plain)(*paged_case([9, 3, 0], group=2, head_dim=4, block_size=4))
    rows = [{place[:2] for place in places} for places in written.pop(plain.__code__.co_varnames[0], [])]
    most, together, num_rows = max(map(len, rows), default=0), len(set().union(*rows)), out.size(0) * out.size(1)
    if most > 1 or together < num_rows:
        raise Wrong(
            f"the values are right, but a task of prange writes up to {most} rows of out, and all tasks together write "
            f"{together} of {num_rows}: loop with prange over one task for each (sequence, query head), and with no "
            "prange inside of another, which is a range"
        )
    for name, places in written.items():
        if sum(map(len, places)) > len(set().union(*places)):
            raise Wrong(
                f"right as plain Python, wrong when tasks run side by side: {name} is made before the loop, and more "
                "than one task writes to it. Make it inside the prange"
            )


def _require_compiled(answer: Any) -> None:
    """Judge the compiled loop on the batches for which plain Python has found no index out of range."""
    from numba.core.errors import NumbaError

    try:
        attention_comparison(LOOPS, {})(_as_attention(answer))
    except Failed as failed:
        if isinstance(failed.error, NumbaError):
            lines = " ".join(str(failed.error).split("\n")[:3])
            raise Wrong(f"right as plain Python, but Numba cannot compile it: {lines}") from failed
        raise
    except Wrong as wrong:
        raise Wrong(
            f"right as plain Python, wrong when tasks run side by side: {wrong}. Does a task use what another one "
            "changes? Make top, total and acc inside the prange"
        ) from wrong
