"""Checkers of lesson 09: the busiest thread, fp32 stored in 16 bits, and the learner's own compiled loop."""

from __future__ import annotations

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

from ..exercises.attention_checks import LARGE_SCORES, Attention, Batch, attention_comparison, draw_lengths
from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.solutions import solution
from ..exercises.wrong import Failed, Wrong
from ..measure.kernel_loads import plain_function

# 09.1

Share = tuple[list[int], int, int]  # cached tokens of each sequence, KV heads, threads


def _draw_share(rng: Random) -> Share:
    lengths = [rng.choice((0, 1, 7, rng.randint(2, 30), 400)) for _ in range(rng.randint(1, 6))]
    return lengths, rng.choice((1, 2, 3, 6, 12)), rng.choice((1, 2, 2, 3, 4, 8, 16))


SHARES: list[Share] = [
    ([5], 1, 1),
    ([5, 3], 1, 4),  # more threads than tasks
    ([9, 1], 2, 3),  # runs of different lengths
    ([1, 9, 2], 1, 2),
    ([9, 1, 1, 1], 2, 2),
    ([400, 10, 10, 10], 6, 4),
    *draw(_draw_share),
]


def _by_head(lengths: list[int], heads: int) -> list[int]:
    return lengths * heads


def _by_sequence(lengths: list[int], heads: int) -> list[int]:
    return [n for n in lengths for _ in range(heads)]


def _runs(tokens: list[int], threads: int) -> list[list[int]]:
    least, longer = divmod(len(tokens), threads)
    starts = [t * least + min(t, longer) for t in range(threads + 1)]
    return [tokens[start:stop] for start, stop in zip(starts, starts[1:], strict=False)]


def _rest_to_the_last(lengths: list[int], heads: int, threads: int) -> int:
    tokens = _by_head(lengths, heads)
    least = len(tokens) // threads
    runs = [tokens[t * least : (t + 1) * least if t < threads - 1 else None] for t in range(threads)]
    return max(map(sum, runs))


SHARE_MISTAKES: dict[str, Callable[..., Any]] = {
    "that is an even share; tasks are dealt out by their number, not by their tokens": lambda lengths, heads, threads: (
        -(-sum(lengths) * heads // threads)
    ),
    "tasks are numbered head by head here: task n serves sequence n % len(lengths)": lambda lengths, heads, threads: (
        max(map(sum, _runs(_by_sequence(lengths, heads), threads)))
    ),
    "threads get runs of consecutive tasks, not tasks in turn": lambda lengths, heads, threads: max(
        sum(_by_head(lengths, heads)[t::threads]) for t in range(threads)
    ),
    "the remaining tasks go to the first threads, one each": _rest_to_the_last,
    "a sequence is a task for each of its KV heads": lambda lengths, heads, threads: max(
        map(sum, _runs(lengths, threads))
    ),
    "that is its number of tasks; count their tokens": lambda lengths, heads, threads: max(
        map(len, _runs(_by_head(lengths, heads), threads))
    ),
    "that is the first thread's; another one may have more": lambda lengths, heads, threads: sum(
        _runs(_by_head(lengths, heads), threads)[0]
    ),
    "that is the sum of all threads": lambda lengths, heads, threads: sum(lengths) * heads,
    "that is the longest task alone; a thread walks over all of its tasks": lambda lengths, heads, threads: max(
        lengths
    ),
}


register(
    "09.1", Comparison(SHARES, Expected(solution("09.1"), SHARE_MISTAKES), inputs("lengths", "num_kv_heads", "threads"))
)

# 09.3

Pattern = tuple[list[int], tuple[int, ...]]  # bits of float32 numbers, the array's shape


def _draw_pattern(rng: Random) -> Pattern:
    """Draw bits of fp32 numbers, and a shape for them.

    Some are any bits; others are ordinary numbers, numbers half-way between two bfloat16 numbers or next to that,
    subnormal numbers, and NaN of either sign.
    """
    shape = rng.choice(((1,), (3,), (2, 3), (2, 1, 2), ()))
    kinds = (
        lambda: rng.getrandbits(32),
        lambda: int(np.float32(rng.uniform(-3, 3)).view(np.uint32)),
        lambda: (rng.randint(0x3F00, 0x4100) << 16) | rng.choice((0x0001, 0x7FFF, 0x8000, 0x8001)),
        lambda: (rng.getrandbits(1) << 31) | rng.randint(1, 0x7FFFFF),
        lambda: (rng.getrandbits(1) << 31) | 0x7F800000 | rng.randint(1, 0x7FFFFF),
    )
    return [rng.choice(kinds)() for _ in range(int(np.prod(shape)))], shape


# 1, -2, what rounds up, both ties; infinity, NaN that an addition or a cut would lose, the largest numbers, 0 and -0;
# subnormal numbers; arrays of no number, and of no dimension
NAN, LARGEST = 0x7FFFFFFF, 0x7F7FFFFF
PATTERNS: list[Pattern] = [
    *(([bits], (1,)) for bits in (0x3F800000, 0xC0000000, 0x3F80C000, 0x3F808000, 0x3F818000)),
    *(([bits], (1,)) for bits in (0x7F800000, 0xFF800000, NAN, 0x7F800001, LARGEST, 0, 0x80000000, 0x00000001)),
    *(([bits], (1,)) for bits in (0xFFFFFFFF, 0xFFFF8000, 0xFF800001, 0xFFC00000, 0xFF7FFFFF, 0x7F7F7FFF)),
    *(([bits], (1,)) for bits in (0x00008000, 0x00008001, 0x00400000, 0x807FFFFF, 0x80018000)),
    ([], (0,)),
    ([], (2, 0, 3)),
    ([0x3F818000], ()),
    *draw(_draw_pattern),
]


def _floats(bits: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers in an array whose dimensions lie in memory the other way round, as a transpose has them."""
    return np.asarray(np.array(bits, dtype=np.uint32).view(np.float32).reshape(shape), order="F")


def _describe_bits(bits: list[int], shape: tuple[int, ...]) -> str:
    return f"x with the bits {' '.join(f'{n:08x}' for n in bits)}, shape {shape}"


@np.errstate(all="ignore")
def _store_with(answer: Callable[..., object], bits: list[int], shape: tuple[int, ...]) -> Any:
    x = _floats(bits, shape)
    got = answer(x)
    if not np.array_equal(x.view(np.uint32), _floats(bits, shape).view(np.uint32)):
        raise Wrong("x was handed in, and you have changed it")
    return got


def _stored(bits: list[int], shape: tuple[int, ...], add: Callable[[Any], Any] | None = None) -> np.ndarray:
    """Round fp32 numbers to the bits of bfloat16. add: what to add before cutting, instead of rounding ties to even."""
    if add is None:
        return torch.from_numpy(_floats(bits, shape).copy()).bfloat16().view(torch.uint16).numpy()
    wide = np.array(bits, dtype=np.uint32)
    return ((wide + add(wide)).astype(np.uint32) >> 16).astype(np.uint16).reshape(shape)


def _with_nan_cut(bits: list[int], shape: tuple[int, ...]) -> np.ndarray:
    return np.where(np.isnan(_floats(bits, shape)), _stored(bits, shape, np.zeros_like), _stored(bits, shape))


def _without_subnormals(bits: list[int], shape: tuple[int, ...]) -> np.ndarray:
    numbers = _floats(bits, shape)
    is_subnormal = np.abs(numbers) < np.finfo(np.float32).smallest_normal
    return np.where(is_subnormal, _stored(bits, shape, np.zeros_like) & 0x8000, _stored(bits, shape))


@np.errstate(over="ignore")
def _in_float16(bits: list[int], shape: tuple[int, ...]) -> np.ndarray:
    return _floats(bits, shape).astype(np.float16).view(np.uint16)


BIT_MISTAKES: dict[str, Callable[..., np.ndarray]] = {
    "the cut turns a NaN whose upper half has no bit after the exponent into infinity; set one": _with_nan_cut,
    "subnormal numbers are numbers, too: only some of them round to 0": _without_subnormals,
    "the addition carries into the exponent of a NaN, or past it; a NaN must stay a NaN": partial(
        _stored, add=lambda wide: 0x7FFF + ((wide >> 16) & 1)
    ),
    "the lower half is cut off; round to the nearest": partial(_stored, add=lambda wide: np.uint32(0)),
    "a tie goes to the even number, not always up": partial(_stored, add=lambda wide: np.uint32(0x8000)),
    "a tie goes to the even number, not always down": partial(_stored, add=lambda wide: np.uint32(0x7FFF)),
    "those are float16's bits; bfloat16 has the exponent of a float32, and 7 bits after it": _in_float16,
}


def _explain_bits(got: object, want: np.ndarray) -> str | None:
    if got is None:
        return "got None: is a `return` missing?"
    if isinstance(got, np.generic):  # what NumPy's arithmetic makes of an array of no dimension
        got = np.asarray(got)
    if not isinstance(got, np.ndarray):
        return f"expected a NumPy array, got {type(got).__name__}"
    if got.dtype != np.uint16:
        return f"dtype {got.dtype}, expected uint16: the bits, not the numbers"
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    wrong = (got != want) & ~(_is_nan(got) & _is_nan(want))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    what = "a NaN, such as " if _is_nan(want)[at] else ""
    return f"{int(wrong.sum())} of {want.size} differ, first at {at}: got {got[at]:04x}, expected {what}{want[at]:04x}"


def _is_nan(bits: np.ndarray) -> np.ndarray:
    return (bits & 0x7FFF) > 0x7F80


register("09.3", Comparison(PATTERNS, Expected(_stored, BIT_MISTAKES, _explain_bits), _describe_bits, call=_store_with))

# 09.2


def _as_attention(loop: Callable[..., Any]) -> Attention:
    """Wrap a loop so that it takes the arguments of paged_attention_reference."""

    def attention(q: Tensor, *rest: Tensor) -> Tensor:
        handed = [q, *rest]
        arrays = [tensor.contiguous().numpy() for tensor in handed]
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


LEFT = 100.0  # what out holds before, as memory that was used holds anything
ARGUMENTS = ("q", "k", "v", "k_cache", "v_cache", "block_table", "context_lens")


def _require_compiled(answer: Any) -> None:
    """Judge the compiled loop on the batches for which plain Python has found no index out of range."""
    from numba.core.errors import NumbaError

    try:
        attention_comparison(LOOPS, {})(_as_attention(answer))
    except Failed as failed:
        if isinstance(failed.error, NumbaError):
            raise Wrong(f"right as plain Python, but Numba cannot compile it: {_first_lines(failed.error)}") from failed
        raise
    except Wrong as wrong:
        raise Wrong(
            f"right as plain Python, wrong when tasks run side by side: {wrong}. Does a task use what another one "
            "changes? Make top, total and acc inside the prange"
        ) from wrong


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])


def _require_tasks(plain: Callable[..., Any]) -> None:
    """Raise Wrong unless each row of `out` has a task of its own, and no two tasks write to the same other array.

    A race between threads may be won by chance, so the tasks run one after the other here.
    """
    tasks, case = _Tasks(), paged_case([9, 3, 0], group=2, head_dim=4, block_size=4)
    with patch.object(numba.prange, "__new__", lambda _, *bounds: tasks.run(*bounds)):
        _as_attention(plain)(*case)
    if not tasks.rows:
        raise Wrong("the values are right, but no task runs side by side with another: loop over the tasks with prange")
    if (most := max(tasks.rows)) > 1:
        raise Wrong(
            f"the values are right, but one task writes {most} rows of out, and a task is one thread's: make it one "
            "for each (sequence, query head), and no prange inside of another, which is a range"
        )
    if (written := sum(tasks.rows)) < (rows := case.q.size(0) * case.q.size(1)):
        raise Wrong(
            f"the values are right, but prange's tasks write {written} of {rows} rows of out, one thread the rest"
        )
    if tasks.shared:
        raise Wrong(
            f"right as plain Python, wrong when tasks run side by side: {tasks.shared} is made before the loop, and "
            "more than one task writes to it. Make it inside the prange"
        )


class _Tasks:
    """Stands in for prange, and finds the caller's arrays, made before the first task, that two tasks write to.

    rows: how many rows of `out` each task of an outermost prange has written; what it writes again does not count.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.shared = ""
        self.is_inside = False

    def run(self, *bounds: int) -> Iterator[int]:
        if self.is_inside:  # as Numba does it
            return iter(range(*bounds))
        caller = sys._getframe(2)  # run, the lambda that stands for prange, the loop
        code, known = caller.f_code, caller.f_locals
        out, *given = code.co_varnames[: code.co_argcount]
        arrays = {n: known[n] for n in sorted(set(known) - set(given)) if isinstance(known[n], np.ndarray)}
        return self._tasks(range(*bounds), arrays, out)

    def _tasks(self, numbers: range, arrays: dict[str, np.ndarray], out: str) -> Iterator[int]:
        written = {name: np.zeros(array.shape, bool) for name, array in arrays.items()}
        for task in numbers:
            before = {name: array.copy() for name, array in arrays.items()}
            self.is_inside = True
            yield task
            self.is_inside = False
            for name, array in arrays.items():
                changed = (array != before[name]) & ~((array != array) & (before[name] != before[name]))
                if name == out:
                    self.rows.append(int((changed & ~written[name]).any(-1).sum()))
                elif (changed & written[name]).any():
                    self.shared = name
                written[name] |= changed


def _walk(shrink_acc: bool = True, shrink_total: bool = True) -> Attention:
    """Make an attention [B, H, D] by online softmax; acc or total can be kept from shrinking at a larger score."""

    def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
        out = torch.empty_like(q)
        block_size, group = k_cache.size(1), q.size(1) // k.size(1)
        for seq, num_cached in enumerate(context_lens.tolist()):
            for head in range(q.size(1)):
                query, kv_head = q[seq, head] * q.size(-1) ** -0.5, head // group
                top, total, acc = query @ k[seq, kv_head], torch.tensor(1.0), v[seq, kv_head]
                for position in range(num_cached):
                    at = int(block_table[seq, position // block_size]), position % block_size, kv_head
                    score = query @ k_cache[at]
                    new_top = torch.maximum(top, score)
                    shrink, weight = torch.exp(top - new_top), torch.exp(score - new_top)
                    acc = acc * (shrink if shrink_acc else 1) + weight * v_cache[at]
                    total = total * (shrink if shrink_total else 1) + weight
                    top = new_top
                out[seq, head] = acc / total
        return out

    return attention


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
WALKS = {
    "when a larger score comes, acc must shrink by exp(top - new_top)": _walk(shrink_acc=False),
    "when a larger score comes, total must shrink by exp(top - new_top)": _walk(shrink_total=False),
    "when a larger score comes, acc and total must shrink by exp(top - new_top)": _walk(False, False),
    "out holds what was in memory before: write to it, do not add to it": lambda *case: _walk()(*case) + LEFT,
}


def _draw_loop(rng: Random) -> Batch:
    block_size = rng.choice((1, 3, 4, 8))
    lengths = draw_lengths(rng, block_size, most=12, most_seqs=3)
    return lengths, rng.randint(1, 2), rng.randint(1, 3), rng.choice((2, 4)), block_size, "fp32"


LOOPS: list[Batch] = [
    ([0], 1, 1, 4, 8, "fp32"),
    ([1], 1, 1, 4, 8, "fp32"),
    ([0, 3], 1, 1, 2, 4, "fp32"),
    ([8, 3], 1, 1, 2, 8, "fp32"),  # a full block
    ([9, 16, 3], 2, 2, 4, 8, "fp32"),  # several blocks, query heads that share KV heads
    ([5, 60], 2, 3, 4, 4, "fp32"),
    ([300], 1, 1, 2, 1, "fp32"),  # block ids over 255
    *LARGE_SCORES,
    *draw(_draw_loop),
]
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
