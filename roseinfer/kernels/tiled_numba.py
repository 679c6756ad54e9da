"""x @ W.T on a CPU, for any number of rows of x, with W in float32 or bfloat16 and sums in float32.

W lies in memory as the product reads it, in tiles of 32 rows: for each value of K the tile's 32 values stand beside
each other. A group of up to ROWS rows of x meets a tile at a time. Its sums stay in registers over all of K, so each
vector of W is loaded once for the whole group, and one row of x reads W from end to end, as fast as memory gives it
(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). A sum is made in the same order
whatever other rows are in its group, so a row of the result is the same to the bit in every batch.

bfloat16 goes in pairs: two neighbours of K share the 32 bits of a lane. CPUs with AMX multiply whole blocks of them
(amx_numba.py). Those with AVX512-BF16 have one instruction for both products and their sum; others widen each half to
float32, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

from . import amx_numba
from .amx_numba import HAS_AMX, multiply_pairs
from .numba_calls import compiled
from .paged_numba import SUMS, exp_of_negative
from .simd import FLOATS, I32, INTS, LANES, function, fused, in_every_lane, pointer_to, shape_of

VECTORS = 2
TILE = VECTORS * LANES  # rows of W that are multiplied at a time
# Rows of x in a group, and how many of them meet both vectors of a tile at once. The sums of a row and a vector take 1
# register with AVX-512, which has 32 of them; with AVX2, 2 of 16. So larger groups meet one vector after the other.
HAS_WIDE_REGISTERS = bool(llvm.get_host_cpu_features().get("avx512f"))
ROWS, ROWS_AT_ONCE = (8, 8) if HAS_WIDE_REGISTERS else (4, 2)
STORE, GELU, ADD = range(3)  # what becomes of a product: it is stored, with GELU applied, or added to what is there
READ_TO_L2 = I32(0), I32(2), I32(1)  # of llvm.prefetch: to be read, for the second cache, as data
DEPTH = 512  # values of K that are summed up before their sum joins the others: shorter sums are rounded less


def tiles(weight: Tensor) -> Tensor:
    """Return W [M, K] as the product reads it, in tiles padded with zeros.

    They are [M / 32, K, 32] float32, or [M / 32, K / 2, 32] int32, each a pair of bfloat16.
    """
    (num_rows, depth), in_pairs = weight.shape, weight.dtype == torch.bfloat16
    rows = weight.new_zeros(num_rows + -num_rows % TILE, depth + depth % 2 if in_pairs else depth)
    rows[:num_rows, :depth] = weight
    values = rows.view(torch.int32) if in_pairs else rows
    return values.view(len(rows) // TILE, TILE, -1).transpose(1, 2).contiguous()


def multiply_tile(sums, x, m, count, w, tile):
    """Set sums[:count] = x[m : m + count] @ w[tile]. It is only ever compiled, one version for each type of w.

    count: from 1 to rows_of_x(w). sums [rows_of_x(w), TILE] float32. grouped_numba.py adds the versions for fewer bits.
    """
    raise NotImplementedError


@overload(multiply_tile)
def _multiply_tile(sums, x, m, count, w, tile):
    if w.dtype == types.int32 and HAS_AMX:
        return lambda sums, x, m, count, w, tile: multiply_pairs(sums, x, m, count, w, tile)
    if w.dtype in (types.float32, types.int32):
        return lambda sums, x, m, count, w, tile: multiply_floats(sums, x, m, count, w, tile)


@intrinsic
def multiply_floats(
    typing: Any, sums: types.Array, x: types.Array, m: types.Integer, count: types.Integer, w: types.Array,
    tile: types.Integer,
) -> tuple[Any, Callable]:  # fmt: skip
    """Compute multiply_tile, with x [N, K] and w [tiles, K, TILE] both float32, or both int32: pairs of bfloat16."""
    return types.none(sums, x, types.intp, types.intp, w, types.intp), case_for_each_count(_multiply_rows)


def case_for_each_count(multiply_rows: Callable[..., None]) -> Callable[..., ir.Value]:
    """Return what an intrinsic like multiply_tile generates: a loop for each count of rows, its sums in registers.

    A count with too many sums for one loop has a loop for each vector of the tile.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        end = builder.append_basic_block("multiplied")
        group = builder.switch(args[3], end)
        for num_rows in range(1, ROWS + 1):
            block = builder.append_basic_block(f"rows_{num_rows}")
            group.add_case(ir.Constant(args[3].type, num_rows), block)
            builder.position_at_end(block)
            at_once = VECTORS if num_rows <= ROWS_AT_ONCE else 1
            for first in range(0, VECTORS, at_once):
                multiply_rows(context, builder, signature, args, num_rows, range(first, first + at_once))
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return generate


def _multiply_rows(
    context: Any, builder: ir.IRBuilder, signature: Any, args: Any, num_rows: int, vectors: range
) -> None:
    """Generate the products of num_rows rows of x with a tile. vectors: those of the tile that are multiplied."""
    sums, x, m, _, w, tile = args
    size = m.type
    zero, none = size(0), ir.Constant(FLOATS, None)
    _, depth, _ = shape_of(context, builder, signature.args[4], w)
    kind = FLOATS if signature.args[4].dtype == types.float32 else INTS
    tile_at = pointer_to(context, builder, signature.args[4], w, [tile, zero, zero])
    rows = [
        pointer_to(context, builder, signature.args[1], x, [builder.add(m, size(r)), zero]) for r in range(num_rows)
    ]
    multiply = fused if kind is FLOATS else partial(_two_products, context)
    each = [(r, v) for r in range(num_rows) for v in vectors]
    totals, parts = ({one: cgutils.alloca_once_value(builder, none) for one in each} for _ in range(2))
    for one in each:  # a second call finds what the first one left
        builder.store(none, totals[one])

    def vector_at(pointer: ir.Value, index: ir.Value, of: ir.Type) -> ir.Value:
        return builder.bitcast(builder.gep(pointer, [index]), of.as_pointer())

    # Groups of rows share the next tile among them, and each brings its part near. Without it the CPU would first ask
    # for a tile when the first group already waits for it.
    prefetch = function(builder, "llvm.prefetch.p0i8", ir.VoidType(), [cgutils.voidptr_t, I32, I32, I32])
    next_tile = pointer_to(context, builder, signature.args[4], w, [builder.add(tile, size(1)), zero, zero])
    all_rows, _ = shape_of(context, builder, signature.args[1], x)
    bytes_per_k = builder.sdiv(size(4 * TILE * num_rows), all_rows)
    part = builder.sdiv(builder.mul(builder.mul(m, depth), size(4 * TILE)), all_rows)
    part_at = builder.gep(builder.bitcast(next_tile, cgutils.voidptr_t), [part])

    with cgutils.for_range_slice(builder, zero, depth, size(DEPTH), size) as (first, _):
        for one in each:
            builder.store(none, parts[one])
        last = builder.add(first, size(DEPTH))
        last = builder.select(builder.icmp_signed("<", last, depth), last, depth)
        with cgutils.for_range_slice(builder, first, last, size(1), size) as (k, _):
            at = builder.mul(k, size(TILE))
            if num_rows == ROWS:
                ahead = builder.gep(part_at, [builder.mul(k, bytes_per_k)])
                builder.call(prefetch, [ahead, *READ_TO_L2])
            loaded = {
                v: builder.load(vector_at(tile_at, builder.add(at, size(v * LANES)), kind), align=4) for v in vectors
            }
            for r in range(num_rows):
                value = in_every_lane(builder, builder.load(builder.gep(rows[r], [k])))
                for v in vectors:
                    builder.store(multiply(builder, loaded[v], value, builder.load(parts[r, v])), parts[r, v])
        for one in each:
            builder.store(builder.fadd(builder.load(totals[one]), builder.load(parts[one])), totals[one])
    for r, v in each:
        to = pointer_to(context, builder, signature.args[0], sums, [size(r), size(v * LANES)])
        builder.store(builder.load(totals[r, v]), builder.bitcast(to, FLOATS.as_pointer()), align=4)


def _two_products(context: Any, builder: ir.IRBuilder, w: ir.Value, x: ir.Value, sums: ir.Value) -> ir.Value:
    """Return sums + two products of bfloat16 in each of 16 lanes."""
    if "+avx512bf16" in context.codegen().magic_tuple()[2].split(","):
        dot = function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [FLOATS, INTS, INTS])
        return builder.call(dot, [sums, w, x])
    shift, upper = INTS([16] * LANES), INTS([-65536] * LANES)  # a bfloat16 is the upper half of a float32
    low_w, low_x = (builder.bitcast(builder.shl(pair, shift), FLOATS) for pair in (w, x))
    high_w, high_x = (builder.bitcast(builder.and_(pair, upper), FLOATS) for pair in (w, x))
    return fused(builder, high_w, high_x, fused(builder, low_w, low_x, sums))


@njit(inline="always")
def bits_of_bfloat16(x):
    """Return the bits of the nearest bfloat16; of two equally near, the even one."""
    whole = np.int32(np.float32(x).view(np.int32))
    rounded = np.int32((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16)
    return rounded if x == x else np.int32(0x7FC0)


def factor(x, kind):
    """Return x [N, K] float32 in the form for a product with weights of that kind. It is only ever compiled."""
    raise NotImplementedError


@overload(factor)
def _factor(x, kind):
    if kind.dtype == types.float32:
        return lambda x, kind: x
    if kind.dtype != types.int32:
        return None

    def pairs(x, kind):
        out = np.empty((x.shape[0], x.shape[1] // 2), np.int32)
        for n in range(out.shape[0]):
            for k in range(out.shape[1]):
                low, high = bits_of_bfloat16(x[n, 2 * k]), bits_of_bfloat16(x[n, 2 * k + 1])
                out[n, k] = np.int32((low & 0xFFFF) | (high << 16))
        return out

    return pairs


@njit(fastmath=SUMS, error_model="numpy")  # "numpy": no check for a division by 0, which would keep it from vectors
def gelu_tanh(x):
    """Return x times the normal distribution's share below x, by Hendrycks and Gimpel's approximation (2016)."""
    t = np.float32(1.5957691216) * (x + np.float32(0.044715) * x * x * x)
    small = exp_of_negative(-abs(t))
    return x * (np.float32(1) if t > 0 else small) / (np.float32(1) + small)


def rows_of_x(w):
    """Return how many rows of x meet a tile of w at once. It is only ever compiled."""
    raise NotImplementedError


@overload(rows_of_x)
def _rows_of_x(w):
    rows = amx_numba.ROWS if w.dtype == types.int32 and HAS_AMX else ROWS
    return lambda w: rows


@compiled(parallel=True, error_model="numpy")
def multiply_tiled(out, x, w, bias, then):
    """Set out [N, M] to x @ W.T + bias, or do what `then` says. bias: [M], or [0] for none."""
    for tile in prange(w.shape[0]):
        n = tile * TILE
        width = min(TILE, out.shape[1] - n)
        sums = np.empty((rows_of_x(w), TILE), np.float32)
        shift = bias[n : n + width] if len(bias) else np.zeros(width, np.float32)
        for m in range(0, x.shape[0], rows_of_x(w)):
            count = min(rows_of_x(w), x.shape[0] - m)
            multiply_tile(sums, x, m, count, w, tile)
            for r in range(count):
                row = out[m + r, n : n + width]
                if then == ADD:
                    for i in range(width):
                        row[i] += sums[r, i] + shift[i]
                elif then == GELU:
                    for i in range(width):
                        row[i] = gelu_tanh(sums[r, i] + shift[i])
                else:
                    for i in range(width):
                        row[i] = sums[r, i] + shift[i]
