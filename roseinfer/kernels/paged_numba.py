"""paged_attention_numba: write, then attend, over a flat batch, in loops that Numba compiles for the CPU.

Lam, Pitrou and Seibert, "Numba: a LLVM-based Python JIT compiler", 2015. Online softmax: Milakov and Gimelshein, 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numba
import numpy as np
import torch
from numba import njit, prange, types
from numba.extending import overload
from torch import Tensor

from roseinfer.graphs.operation import operation

from .numba_calls import bits, compiled, run_parallel
from .simd import (
    LANES,
    add,
    copy_row,
    largest,
    load,
    maximum,
    multiply_add,
    sixteen_dots,
    splat,
    store,
    zeros,
)

# What the compiler may do with sums: reorder and fuse them. Not "nnan" or "ninf", with which it may take for granted
# that nothing is NaN or infinite: the running maximum starts at -inf, and a slot without a token may hold anything.
SUMS = {"reassoc", "contract", "arcp", "nsz", "afn"}
# Query rows (new tokens x query heads of the group) that one task serves: they share each block it reads, which stays
# in the L1 cache meanwhile.
ROWS_PER_TASK = 32
LOG2_E = np.float32(1.4426950408889634)


@operation
def paged_attention_numba(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    out: Tensor | None = None,
    max_query_len: int | None = None,
) -> Tensor:
    """Compute paged_attention_reference on a CPU: float32, or a 16-bit type with sums in fp32."""
    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype) if out is None else out
    sums = out if out.dtype == torch.float32 else torch.empty(q.shape, dtype=torch.float32)
    run_parallel(
        compiled_for(k_cache.dtype),
        sums.numpy(),
        bits(q),
        bits(k),
        bits(v),
        bits(k_cache),
        bits(v_cache),
        slot_mapping.numpy(),
        query_start.numpy(),
        context_lens.numpy(),
        block_tables.numpy(),
    )
    return out if sums is out else out.copy_(sums)


@cache
def compiled_for(dtype: torch.dtype) -> Callable[..., None]:
    """Return write_then_attend in machine code: compiled in seconds, or read from disk where it was kept.

    The types are given, so that one compilation does for cuts of any tensor ("A": any strides); a batch of one token
    has other strides than one of two.
    """
    number = numba.typeof(bits(torch.empty(0, dtype=dtype))).dtype
    new, pool, index = types.Array(number, 3, "A"), types.Array(number, 4, "C"), types.Array(types.int32, 1, "C")
    out, table = types.Array(types.float32, 3, "C"), types.Array(types.int32, 2, "A")
    signature = types.void(out, new, new, new, pool, pool, index, index, index, table)
    return compiled(signature, parallel=True, fastmath=SUMS)(write_then_attend)


def as_float(x):
    """Return the number that an element of `bits` stands for. It is only ever compiled, one version a type."""
    raise NotImplementedError


@overload(as_float, inline="always")
def _as_float(x):
    if x == types.float32:
        return lambda x: x
    if x == types.int16:  # bfloat16 is the upper half of a float32
        return lambda x: np.int32(np.int32(x) << 16).view(np.float32)

    def from_float16(x):
        # Sign, exponent and fraction at their places in a float32; a product then turns the exponent's bias of 15 into
        # 127, also for the small numbers without a leading 1. Infinity becomes 65536: as large, and finite.
        return np.int32((x & 0x8000) << 16 | (x & 0x7FFF) << 13).view(np.float32) * np.float32(2.0**112)

    return from_float16


@njit(fastmath=SUMS, inline="always")
def exp_of_negative(x):
    """Return exp(x) for x <= 0 to 2 units in the last place: 2**n * 2**f.

    A call of the C library's would keep the loop around it from being vectorised.
    """
    t = max(x * LOG2_E, np.float32(-126.0))
    n = np.floor(t)
    f = t - n
    p = np.float32(0.00021865784)
    p = p * f + np.float32(0.0012382075)
    p = p * f + np.float32(0.009684186)
    p = p * f + np.float32(0.05548042)
    p = p * f + np.float32(0.24023040)
    p = p * f + np.float32(0.69314698)
    p = p * f + np.float32(1.0)
    return np.int32((np.int32(n) + 127) << 23).view(np.float32) * p


def write_then_attend(out, q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables):
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    # All K and V first, and only then any attention: a prompt's token reads what its neighbours wrote.
    for n in prange(q.shape[0]):
        block, offset = divmod(np.int64(slot_mapping[n]), block_size)
        for head in range(num_kv_heads):
            copy_row(k_cache, (block, head, offset), k, (n, head))
            copy_row(v_cache, (block, head, offset), v, (n, head))

    # Then a task for each KV head of each tile, a few neighbouring tokens of one sequence. Threads get runs of tasks;
    # numbered head by head, each run has some of every sequence, the longest too.
    tile_size = max(1, ROWS_PER_TASK // (q.shape[1] // num_kv_heads))
    first_tile = np.zeros(len(context_lens) + 1, np.int64)
    for i in range(len(context_lens)):
        first_tile[i + 1] = first_tile[i] + (query_start[i + 1] - query_start[i] + tile_size - 1) // tile_size
    num_tiles = first_tile[-1]
    for task in prange(num_tiles * num_kv_heads):
        head, tile = divmod(np.int64(task), num_tiles)
        i = np.searchsorted(first_tile, tile, side="right") - 1
        start = query_start[i] + (tile - first_tile[i]) * tile_size
        stop = min(start + tile_size, query_start[i + 1])
        position = context_lens[i] - (query_start[i + 1] - start)  # of the first token
        attend(out, q, k_cache, v_cache, block_tables[i], head, start, stop, position)


@njit(fastmath=SUMS)
def attend(out, q, k_cache, v_cache, block_table, head, start, stop, position):
    """Attend from tokens start to stop of one sequence, the first at `position`, in all query heads of one KV head."""
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    width = (head_dim + LANES - 1) // LANES * LANES  # what lies past head_dim is 0
    group = q.shape[1] // num_kv_heads
    rows = (stop - start) * group
    scale = np.float32(1.0 / np.sqrt(head_dim))
    query, given = np.zeros((rows, width), np.float32), np.empty(head_dim, q.dtype)
    for row in range(rows):
        token, member = divmod(row, group)
        copy_row(given, (), q, (start + token, head * group + member))
        for d in range(head_dim):
            query[row, d] = as_float(given[d]) * scale

    acc = np.zeros((rows, width), np.float32)  # sum of exp(score - top) * v
    sums = np.zeros((rows, 2), np.float32)  # the largest score so far, top; and the sum of exp(score - top)
    sums[:, 0] = -np.inf
    weights = np.empty((1, block_size + LANES), np.float32)
    is_converted = k_cache.itemsize < 4 or width > head_dim
    scratch = np.empty((2, block_size if is_converted else 0, width), np.float32)
    for first in range(0, position + stop - start, block_size):
        block = block_table[first // block_size]
        used = min(block_size, position + stop - start - first)
        keys = floats(k_cache[block, head], used, scratch[0])
        values = floats(v_cache[block, head], used, scratch[1])
        for row in range(rows):
            seen = min(used, position + row // group + 1 - first)  # a token sees itself and those before it
            if seen > 0:
                attend_block(query, row, keys, values, seen, weights, acc, sums)

    for row in range(rows):
        token, member = divmod(row, group)
        share = np.float32(1.0) / sums[row, 1]
        for d in range(head_dim):
            out[start + token, head * group + member, d] = acc[row, d] * share


@njit(fastmath=SUMS)
def attend_block(query, row, keys, values, seen, weights, acc, sums):
    """Take one step of the online softmax: the first `seen` tokens of a block join acc[row] and sums[row]."""
    top = sums[row, 0]
    tops = splat(top)
    for s in range(0, seen, LANES):
        scores = sixteen_dots(query, row, keys, s, seen - 1)  # past the last one seen: that one again
        store(weights, 0, s, scores)
        tops = maximum(scores, tops)
    new_top = largest(tops)
    shrink = exp_of_negative(top - new_top)  # what was summed up against the old top
    part = np.float32(0.0)
    for s in range(seen):
        weights[0, s] = exp_of_negative(weights[0, s] - new_top)
        part += weights[0, s]
    sums[row, 0] = new_top
    sums[row, 1] = sums[row, 1] * shrink + part
    width = acc.shape[1]
    for d in range(0, width, 2 * LANES):
        add_values(acc, row, d, min(d + LANES, width - LANES), shrink, weights, values, seen)


@njit
def add_values(acc, row, d1, d2, shrink, weights, values, seen):
    """Set acc[row] to acc[row] * shrink + the weighted sum of values, in the 16 columns from d1 and those from d2.

    d2 may be d1. Every fourth value has its own sum, so that one addition does not wait for the one before it.
    """
    a = zeros(), zeros()
    b, c, e = a, a, a
    fours = seen - seen % 4
    for s in range(0, fours, 4):
        a = add_value(a, weights, values, s, d1, d2)
        b = add_value(b, weights, values, s + 1, d1, d2)
        c = add_value(c, weights, values, s + 2, d1, d2)
        e = add_value(e, weights, values, s + 3, d1, d2)
    for s in range(fours, seen):
        a = add_value(a, weights, values, s, d1, d2)
    total1, total2 = add(add(a[0], b[0]), add(c[0], e[0])), add(add(a[1], b[1]), add(c[1], e[1]))
    new1 = multiply_add(splat(shrink), load(acc, row, d1), total1)
    new2 = multiply_add(splat(shrink), load(acc, row, d2), total2)
    store(acc, row, d1, new1)
    store(acc, row, d2, new2)


@njit
def add_value(sums, weights, values, s, d1, d2):
    weight = splat(weights[0, s])
    return multiply_add(weight, load(values, s, d1), sums[0]), multiply_add(weight, load(values, s, d2), sums[1])


def floats(block, used, scratch):
    """Return the first `used` rows of a block [block_size, D] as float32. It is only ever compiled.

    They are the block itself, or lie in scratch, padded with zeros, where that has rows.
    """
    raise NotImplementedError


@overload(floats)
def _floats(block, used, scratch):
    def converted(block, used, scratch):
        for s in range(used):
            for d in range(block.shape[1]):
                scratch[s, d] = as_float(block[s, d])
            scratch[s, block.shape[1] :] = 0
        return scratch

    if block.dtype != types.float32:
        return converted
    convert = njit(converted)
    return lambda block, used, scratch: convert(block, used, scratch) if len(scratch) else block
