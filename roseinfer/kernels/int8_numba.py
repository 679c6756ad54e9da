"""A linear layer in 8 bits on a CPU: x @ W.T + b with W in int8 and a scale a row, x quantised on the way in.

Each row of x and of W is divided by its largest absolute value / 127 and rounded (symmetric, "absmax" quantisation:
Dettmers et al., "LLM.int8()", 2022, without its outliers). The products are summed as integers, so nothing rounds: a
row of the result is the same whatever other rows are beside it, on any CPU.

The sum runs over vectors of 64 bytes. CPUs have an instruction for four products of bytes and their sum in each of 16
lanes, which no compiler here finds by itself, hence the four @intrinsic functions: they write the LLVM IR of one vector
operation each. Where a CPU has no such instruction, the same sum is written with multiplications.

That instruction multiplies unsigned by signed bytes. x is therefore kept as its value + 128, and what that adds to a
sum, 128 times the sum of the row of W, is taken away again: `offsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

STEP = 64  # values of K that one vector holds: weights are padded to a multiple of it
ROWS = 4  # rows of x, and of W, that are multiplied with each other at a time
BLOCK = 64  # rows of x that are quantised before W is read: they stay in a core's L2

I32 = ir.IntType(32)
VECTOR = ir.VectorType(I32, 16)


class Lanes(types.Type):
    """16 int32, or the same 64 bytes as four int8 in each of 16 lanes; lives in a register."""

    def __init__(self) -> None:
        super().__init__("int32x16")


lanes = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: Lanes) -> None:
        super().__init__(manager, numba_type, VECTOR)


@intrinsic
def zeros(typing: Any) -> tuple[Any, Callable]:
    """16 sums at 0."""
    return lanes(), lambda context, builder, signature, args: VECTOR([0] * 16)


@intrinsic
def load(typing: Any, array: types.Array, row: types.Integer, k: types.Integer) -> tuple[Any, Callable]:
    """The 64 bytes array[row, k : k + 64]."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        address = cgutils.get_item_pointer(context, builder, signature.args[0], view, args[1:])
        return builder.load(builder.bitcast(address, VECTOR.as_pointer()), align=1)

    return lanes(array, types.intp, types.intp), generate


@intrinsic
def add_products(typing: Any, sums: Lanes, x: Lanes, w: Lanes) -> tuple[Any, Callable]:
    """sums[lane] + four products of unsigned bytes of x and signed bytes of w."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        features = context.codegen().magic_tuple()[2].split(",")
        if "+avx512vnni" in features:
            return _four_products(builder, args, 512)
        if "+avxvnni" in features:
            halves = [_four_products(builder, [_part(builder, v, range(i, i + 8)) for v in args], 256) for i in (0, 8)]
            return builder.shuffle_vector(*halves, _picks(range(16)))
        sums, x, w = args
        as_bytes, as_ints = ir.VectorType(ir.IntType(8), STEP), ir.VectorType(I32, STEP)
        wide_x = builder.zext(builder.bitcast(x, as_bytes), as_ints)
        wide_w = builder.sext(builder.bitcast(w, as_bytes), as_ints)
        products = builder.mul(wide_x, wide_w)
        for lanes_left in (32, 16):  # neighbours are added twice: from 64 lanes to 16
            even, odd = (_part(builder, products, range(first, 2 * lanes_left, 2)) for first in (0, 1))
            products = builder.add(even, odd)
        return builder.add(sums, products)

    return lanes(sums, x, w), generate


def _four_products(builder: ir.IRBuilder, args: Sequence[ir.Value], bits: int) -> ir.Value:
    kind = ir.FunctionType(args[0].type, [args[0].type] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx512.vpdpbusd.{bits}"), args
    )


def _part(builder: ir.IRBuilder, vector: ir.Value, which: range) -> ir.Value:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _picks(which))


def _picks(which: range) -> ir.Constant:
    return ir.VectorType(I32, len(which))(list(which))


@intrinsic
def total(typing: Any, sums: Lanes) -> tuple[Any, Callable]:
    """The sum of all 16 lanes."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        kind = ir.FunctionType(I32, [VECTOR])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.add.v16i32"), args
        )

    return types.int32(sums), generate


@njit
def load_rows(array, row, k):
    return load(array, row, k), load(array, row + 1, k), load(array, row + 2, k), load(array, row + 3, k)


@njit
def add_row(sums, x, w):
    """One row of x with four of W."""
    return (
        add_products(sums[0], x, w[0]),
        add_products(sums[1], x, w[1]),
        add_products(sums[2], x, w[2]),
        add_products(sums[3], x, w[3]),
    )


@njit
def totals(sums):
    return total(sums[0]), total(sums[1]), total(sums[2]), total(sums[3])


@njit
def one_row(x, w, m, n):
    """x[m] times w[n], ..., w[n + 3]: four integers."""
    a = (zeros(), zeros(), zeros(), zeros())
    for k in range(0, x.shape[1], STEP):
        a = add_row(a, load(x, m, k), load_rows(w, n, k))
    return totals(a)


@njit
def four_rows(x, w, m, n):
    """x[m], ..., x[m + 3] times w[n], ..., w[n + 3]: 16 sums in registers, and each vector is loaded for four of them."""
    none = (zeros(), zeros(), zeros(), zeros())
    a, b, c, d = none, none, none, none
    for k in range(0, x.shape[1], STEP):
        weights = load_rows(w, n, k)
        a = add_row(a, load(x, m, k), weights)
        b = add_row(b, load(x, m + 1, k), weights)
        c = add_row(c, load(x, m + 2, k), weights)
        d = add_row(d, load(x, m + 3, k), weights)
    return totals(a), totals(b), totals(c), totals(d)


@njit(fastmath={"reassoc", "nsz"})  # sums and maxima in any order, so that they become vectors; NaN stays NaN
def quantize_row(x, out):
    """x [K] float32 -> out [K padded] uint8, value + 128; returns the scale, NaN for a row that is not finite."""
    largest, not_finite = np.float32(0), np.float32(0)
    for k in range(x.shape[0]):
        largest = max(largest, abs(x[k]))
        not_finite += x[k] * np.float32(0)
    inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
    for k in range(x.shape[0]):
        out[k] = np.uint8(np.int32(np.rint(x[k] * inverse)) + 128)
    out[x.shape[0] :] = 128
    return largest / np.float32(127) + not_finite


@njit
def write(out, m, n, sums, x_scale, scales, offsets, bias):
    """Four integers back to floats: out[m, n : n + 4], as far as out goes."""
    for i in range(ROWS):
        if n + i < out.shape[1]:
            out[m, n + i] = np.float32(sums[i] - offsets[n + i]) * (x_scale * scales[n + i]) + bias[n + i]


@njit(parallel=True, cache=True)
def int8_linear(x, weight, scales, offsets, bias, out):
    """out [M, N] = x [M, K] @ (weight * scales).T + bias.

    x float32; weight [N padded to 4, K padded to 64] int8; scales, bias [N] float32; offsets [N] int32: 128 times the
    sum of each row of weight.
    """
    quantized = np.empty((min(BLOCK, x.shape[0]), weight.shape[1]), np.uint8)
    x_scales = np.empty(quantized.shape[0], np.float32)
    for first in range(0, x.shape[0], BLOCK):
        count = min(BLOCK, x.shape[0] - first)
        if count < ROWS:  # sooner done than shared out
            for m in range(count):
                x_scales[m] = quantize_row(x[first + m], quantized[m])
        else:
            for m in prange(count):
                x_scales[m] = quantize_row(x[first + m], quantized[m])
        for tile in prange(weight.shape[0] // ROWS):
            n = tile * ROWS
            fours = count - count % ROWS
            for m in range(0, fours, ROWS):
                a, b, c, d = four_rows(quantized, weight, m, n)
                write(out, first + m, n, a, x_scales[m], scales, offsets, bias)
                write(out, first + m + 1, n, b, x_scales[m + 1], scales, offsets, bias)
                write(out, first + m + 2, n, c, x_scales[m + 2], scales, offsets, bias)
                write(out, first + m + 3, n, d, x_scales[m + 3], scales, offsets, bias)
            for m in range(fours, count):
                write(out, first + m, n, one_row(quantized, weight, m, n), x_scales[m], scales, offsets, bias)
