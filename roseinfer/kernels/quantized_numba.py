"""x @ W.T on a CPU with W in 8 or 4 bits (quantized_layout.py), x rounded to 8 bits first, sums in float32.

Products of bytes are summed as whole numbers over a group of GROUP values of K, which is exact. Then the sum is
multiplied by the group's scales and joins those of the groups before it, in a fixed order. So a row of the result is
the same to the bit whatever other rows are in the batch. Each group of a row of x has a scale: after an activation
function a few values are far larger than the others, and with one scale for a whole row the others would be rounded to
nothing.

CPUs have an instruction for four products of bytes and their sum in each of 16 lanes (VNNI), which no compiler here
finds by itself. Where a CPU lacks it, the same sum is written with multiplications. It multiplies unsigned by signed
bytes, so the values of W have an offset. That adds offset times the sum of the values of x to a group's sum, so each
sum begins with the negative of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils

from .grouped_numba import I8, Sums, add_product, load, times_plus
from .quantized_layout import EIGHT_BITS, FOUR_BITS, GROUP, QuantizedLayout
from .simd import F32, FLOATS, I32, INTS, LANES, function, fused, in_every_lane, part, picks
from .tiled_numba import TILE

WORDS = 2 + GROUP // 4  # of a group of x, int32: its scale's bits, the sum of its values, the values, four in each
FEW = 16  # rows of x below which one thread quantises them: sooner done than shared out
# Bytes ahead of the values of W in use that memory is asked for. Measured from 1 to 16 KB: with 8 rows of x a product
# in 8 bits takes a quarter less time, in 4 bits two fifths. One row alone gains nothing.
AHEAD = 8192
HALVES = ir.VectorType(ir.IntType(16), LANES)
EIGHT, SHORTS = ir.VectorType(I32, 8), HALVES  # a register of 256 bits, as lanes of 32 or of 16 bits
WITHOUT_SIGN, ROUNDING, ROUNDING_BITS = np.int32(0x7FFFFFFF), np.float32(1.5 * 2**23), np.int32(0x4B400000)
SMALLEST = np.float32(2.0**-119)  # absolute value that is not rounded to zero: 127 / it is still finite


@njit
def quantize_group(x, out):
    """Round x [GROUP] float32 to out [GROUP] int8; return the scale (NaN unless all are finite) and the sum of out.

    All is done in 32-bit integers, which compilers turn into vectors: without their sign, floats are ordered as their
    bits are, and adding 1.5 * 2**23 to a small float leaves the nearest whole number in its last bits.
    """
    top = np.int32(0)
    for k in range(GROUP):
        top = max(top, np.int32(np.float32(x[k]).view(np.int32) & WITHOUT_SIGN))
    largest = np.int32(top).view(np.float32)
    inverse = np.float32(127) / largest if largest > SMALLEST else np.float32(0)
    added = np.int32(0)
    for k in range(GROUP):
        value = np.int32(np.float32(x[k] * inverse + ROUNDING).view(np.int32) - ROUNDING_BITS)
        out[k] = np.int8(value)
        added = np.int32(added + value)
    return largest / np.float32(127) + largest * np.float32(0), added


@njit
def quantize_row(x, out):
    """Round x [K] float32 to out [K / GROUP * WORDS] int32."""
    values = out.view(np.int8)
    for group in range(len(x) // GROUP):
        k, at = group * GROUP, group * WORDS
        scale, added = quantize_group(x[k : k + GROUP], values[4 * (at + 2) : 4 * (at + WORDS)])
        out[at], out[at + 1] = np.float32(scale).view(np.int32), added


@njit(parallel=True)
def quantize_rows(x):
    """Return x [N, K] float32 in 8 bits and a scale per group: [N, K / GROUP * WORDS] int32."""
    out = np.empty((x.shape[0], x.shape[1] // GROUP * WORDS), np.int32)
    if len(x) < FEW:
        for n in range(len(x)):
            quantize_row(x[n], out[n])
    else:
        for n in prange(len(x)):
            quantize_row(x[n], out[n])
    return out


def _add_group(
    context: Any,
    builder: ir.IRBuilder,
    layout: QuantizedLayout,
    group: ir.Value,
    fours: list[ir.Value],
    totals: Sums,
    vectors: range,
) -> None:
    """Add a group's products, times its scales, to `totals`. fours: the group in each row of x."""
    products = _group_sums(context, builder, layout, group, fours, vectors)
    scales_w = {v: _group_scales(builder, group, v) for v in vectors} if layout.group_head else None
    for r, four in enumerate(fours):
        scale = in_every_lane(builder, builder.bitcast(builder.load(four), F32))
        for v in vectors:
            scales = builder.fmul(scale, scales_w[v]) if scales_w else scale
            as_floats = builder.sitofp(builder.load(products[r, v]), FLOATS)
            builder.store(fused(builder, as_floats, scales, builder.load(totals[r, v])), totals[r, v])


def _group_sums(
    context: Any, builder: ir.IRBuilder, layout: QuantizedLayout, group: ir.Value, fours: list[ir.Value], vectors: range
) -> Sums:
    """Return where a group's sums of products are kept, by row of x and vector. fours: the group in each row of x."""
    size = cgutils.intp_t
    sums = {(r, v): cgutils.alloca_once(builder, INTS) for r in range(len(fours)) for v in vectors}
    for r, four in enumerate(fours):
        added = builder.load(builder.gep(four, [size(1)]))
        start = in_every_lane(builder, builder.mul(added, I32(-layout.offset)))
        for v in vectors:
            builder.store(start, sums[r, v])
    per_vector = 8 // layout.bits  # values of W in each byte
    four_products = _four_products(context.codegen().magic_tuple()[2].split(","), layout.bits)
    with cgutils.for_range(builder, size(GROUP // 4 // per_vector), intp=size) as loop:
        at = {v: times_plus(builder, loop.index, 4 * TILE, layout.group_head + 4 * LANES * v) for v in vectors}
        packed = {v: load(builder, group, index, INTS) for v, index in at.items()}
        if len(fours) > 1:
            for index in at.values():
                _prefetch(builder, builder.gep(group, [builder.add(index, size(AHEAD))]))
        for half in range(per_vector):
            four_bytes = packed if per_vector == 1 else {v: _half_bytes(builder, packed[v], half) for v in vectors}
            where = times_plus(builder, loop.index, per_vector, 2 + half)
            for r, four in enumerate(fours):
                value = in_every_lane(builder, builder.load(builder.gep(four, [where])))
                for v in vectors:
                    added = four_products(builder, builder.load(sums[r, v]), four_bytes[v], value)
                    builder.store(added, sums[r, v])
    return sums


def _prefetch(builder: ir.IRBuilder, pointer: ir.Value) -> None:
    """Ask memory for the line at that address, which need not be valid."""
    prefetch = function(builder, "llvm.prefetch.p0i8", ir.VoidType(), [pointer.type, I32, I32, I32])
    builder.call(prefetch, [pointer, I32(0), I32(3), I32(1)])  # to be read, into every cache, data


def _half_bytes(builder: ir.IRBuilder, vector: ir.Value, half: int) -> ir.Value:
    """Return the lower halves of 64 bytes, or the upper ones where `half` is 1."""
    shifted = builder.lshr(vector, INTS([4] * LANES)) if half else vector
    return builder.and_(shifted, INTS([0x0F0F0F0F] * LANES))


def _group_scales(builder: ir.IRBuilder, group: ir.Value, v: int) -> ir.Value:
    """Return as float32 the 16 scales in bfloat16 with which a group begins."""
    bits = builder.zext(load(builder, group, cgutils.intp_t(2 * LANES * v), HALVES), INTS)
    return builder.bitcast(builder.shl(bits, INTS([16] * LANES)), FLOATS)


FourProducts = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]


def _four_products(features: list[str], bits: int) -> FourProducts:
    """Return a function that adds four products of bytes, of W and x, to a sum in each of 16 lanes.

    features: the CPU's, which decide how. W is unsigned and has so many bits, x is signed.
    """
    if "+avx512vnni" in features:
        return lambda builder, *vectors: _instruction(builder, "avx512.vpdpbusd.512", INTS, vectors)
    if "+avxvnni" in features:
        return partial(_in_halves, lambda builder, *half: _instruction(builder, "avx512.vpdpbusd.256", EIGHT, half))
    if "+avx2" in features:
        return partial(_in_halves, _add_by_pairs if bits == 4 else _add_by_halves)
    return _add_by_lanes


def _instruction(builder: ir.IRBuilder, name: str, returns: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
    kinds = [arg.type for arg in args]
    return builder.call(function(builder, f"llvm.x86.{name}", returns, kinds), args)


def _in_halves(add: FourProducts, builder: ir.IRBuilder, *vectors: ir.Value) -> ir.Value:
    """Compute 16 lanes with a function that takes 8 of them."""
    halves = [add(builder, *[part(builder, vector, range(i, i + 8)) for vector in vectors]) for i in (0, 8)]
    return builder.shuffle_vector(*halves, picks(range(LANES)))


def _add_by_pairs(builder: ir.IRBuilder, sums: ir.Value, w: ir.Value, x: ir.Value) -> ir.Value:
    """Add products of bytes, in pairs of 16 bits: values of W of 4 bits are too small to overflow there."""
    w, x = (builder.bitcast(bytes_, ir.VectorType(I8, 32)) for bytes_ in (w, x))
    pairs = _instruction(builder, "avx2.pmadd.ub.sw", SHORTS, [w, x])
    return builder.add(sums, _instruction(builder, "avx2.pmadd.wd", EIGHT, [pairs, SHORTS([1] * 16)]))


def _add_by_halves(builder: ir.IRBuilder, sums: ir.Value, w: ir.Value, x: ir.Value) -> ir.Value:
    """Add products of 16 bits: first of the bytes in the upper halves, then of those in the lower ones."""
    w, x = (builder.bitcast(bytes_, SHORTS) for bytes_ in (w, x))
    eight = SHORTS([8] * 16)
    upper = builder.lshr(w, eight), builder.ashr(x, eight)
    lower = builder.and_(w, SHORTS([255] * 16)), builder.ashr(builder.shl(x, eight), eight)
    for halves in (upper, lower):
        sums = builder.add(sums, _instruction(builder, "avx2.pmadd.wd", EIGHT, halves))
    return sums


def _add_by_lanes(builder: ir.IRBuilder, sums: ir.Value, w: ir.Value, x: ir.Value) -> ir.Value:
    """Add products of 32 bits, with operations that any CPU has."""
    as_bytes, as_ints = ir.VectorType(I8, 4 * LANES), ir.VectorType(I32, 4 * LANES)
    wide_w = builder.zext(builder.bitcast(w, as_bytes), as_ints)
    wide_x = builder.sext(builder.bitcast(x, as_bytes), as_ints)
    products = builder.mul(wide_w, wide_x)
    for left in (32, 16):  # neighbours are added twice: from 64 to 16
        products = builder.add(*[part(builder, products, range(first, 2 * left, 2)) for first in (0, 1)])
    return builder.add(sums, products)


add_product([EIGHT_BITS, FOUR_BITS], quantize_rows, WORDS, _add_group)
