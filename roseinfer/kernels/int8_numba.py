"""A linear layer in 8 bits on a CPU: x @ W.T + b, W in int8 with a scale a row, x quantised on the way in.

Absmax quantisation: values are divided by the largest absolute one / 127, and rounded. Of W each row has one scale,
of x each 64 values of a row: behind an activation function a few values are far larger than the others, and with one
scale for a whole row the others would be rounded to nothing. Vectors are summed in a fixed order, so a row of the
result is the same to the bit whatever other rows are beside it.

The sum runs over vectors of 64 bytes. CPUs have an instruction for four products of bytes and their sum in each of 16
lanes, which no compiler here finds by itself, hence the four @intrinsic functions: they write the LLVM IR of one vector
operation each. Where a CPU has no such instruction, the same sum is written with multiplications.

That instruction multiplies unsigned by signed bytes. W is therefore kept as its value + 128, and what that adds to a
result, 128 times the sum of the row of x, is taken away again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from .numba_calls import compiled

STEP = 64  # values of K that one vector holds: weights are padded to a multiple of it
ROWS = 4  # rows of x, and of W, that are multiplied with each other at a time
BLOCK = 64  # rows of x that are quantised before W is read: they stay in a core's L2

I32, F32 = ir.IntType(32), ir.FloatType()
BYTES, SUMS = ir.VectorType(I32, 16), ir.VectorType(F32, 16)


class Lanes(types.Type):
    """A vector register of 16 lanes: four bytes, or one float32, in each."""


byte_lanes, float_lanes = Lanes("bytes4x16"), Lanes("float32x16")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, SUMS if kind is float_lanes else BYTES)


@intrinsic
def zeros(typing: Any) -> tuple[Any, Callable]:
    """16 sums at 0."""
    return float_lanes(), lambda context, builder, signature, args: SUMS([0.0] * 16)


@intrinsic
def load(typing: Any, array: types.Array, row: types.Integer, k: types.Integer) -> tuple[Any, Callable]:
    """The 64 bytes array[row, k : k + 64]."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        address = cgutils.get_item_pointer(context, builder, signature.args[0], view, args[1:])
        return builder.load(builder.bitcast(address, BYTES.as_pointer()), align=1)

    return byte_lanes(array, types.intp, types.intp), generate


@intrinsic
def add_products(typing: Any, sums: Lanes, w: Lanes, x: Lanes, scale: types.Float) -> tuple[Any, Callable]:
    """sums[lane] + scale * (four products of unsigned bytes of w and signed bytes of x); the products are exact."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        sums, w, x, scale = args
        products = builder.sitofp(_four_products(context, builder, w, x), SUMS)
        scales = builder.insert_element(ir.Constant(SUMS, ir.Undefined), scale, I32(0))
        scales = builder.shuffle_vector(scales, ir.Constant(SUMS, ir.Undefined), _picks([0] * 16))
        return builder.call(_function(builder, "llvm.fma.v16f32", SUMS, [SUMS] * 3), [products, scales, sums])

    return float_lanes(sums, w, x, types.float32), generate


def _four_products(context: Any, builder: ir.IRBuilder, w: ir.Value, x: ir.Value) -> ir.Value:
    """In each of 16 lanes the sum of four products of bytes, unsigned by signed."""
    features = context.codegen().magic_tuple()[2].split(",")
    if "+avx512vnni" in features:
        return _instruction(builder, w, x, 512)
    if "+avxvnni" in features:
        halves = [[_part(builder, v, range(i, i + 8)) for v in (w, x)] for i in (0, 8)]
        return builder.shuffle_vector(*[_instruction(builder, *half, 256) for half in halves], _picks(range(16)))
    as_bytes, as_ints = ir.VectorType(ir.IntType(8), STEP), ir.VectorType(I32, STEP)
    wide_w = builder.zext(builder.bitcast(w, as_bytes), as_ints)
    wide_x = builder.sext(builder.bitcast(x, as_bytes), as_ints)
    products = builder.mul(wide_w, wide_x)
    for left in (32, 16):  # neighbours are added twice: from 64 to 16
        products = builder.add(*[_part(builder, products, range(first, 2 * left, 2)) for first in (0, 1)])
    return products


def _instruction(builder: ir.IRBuilder, w: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    function = _function(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", w.type, [w.type] * 3)
    return builder.call(function, [ir.Constant(w.type, None), w, x])


def _function(builder: ir.IRBuilder, name: str, returns: ir.Type, takes: list[ir.Type]) -> ir.Function:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(returns, takes), name)


def _part(builder: ir.IRBuilder, vector: ir.Value, which: Sequence[int]) -> ir.Value:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _picks(which))


def _picks(which: Sequence[int]) -> ir.Constant:
    return ir.VectorType(I32, len(which))(list(which))


@intrinsic
def total(typing: Any, sums: Lanes) -> tuple[Any, Callable]:
    """The sum of all 16 lanes: halves are added until one is left."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        [sums] = args
        for left in (8, 4, 2, 1):
            sums = builder.fadd(*[_part(builder, sums, range(first, first + left)) for first in (0, left)])
        return builder.extract_element(sums, I32(0))

    return types.float32(sums), generate


@njit
def load_rows(array, row, k):
    return load(array, row, k), load(array, row + 1, k), load(array, row + 2, k), load(array, row + 3, k)


@njit
def add_row(sums, w, x, scale):
    """Four rows of W with one of x."""
    return (
        add_products(sums[0], w[0], x, scale),
        add_products(sums[1], w[1], x, scale),
        add_products(sums[2], w[2], x, scale),
        add_products(sums[3], w[3], x, scale),
    )


@njit
def totals(sums):
    return total(sums[0]), total(sums[1]), total(sums[2]), total(sums[3])


@njit
def one_row(x, scales, w, m, n):
    """x[m] times w[n], ..., w[n + 3]."""
    a = (zeros(), zeros(), zeros(), zeros())
    for step in range(scales.shape[1]):
        k = step * STEP
        a = add_row(a, load_rows(w, n, k), load(x, m, k), scales[m, step])
    return totals(a)


@njit
def four_rows(x, scales, w, m, n):
    """x[m], ..., x[m + 3] times w[n], ..., w[n + 3]: 16 sums in registers, each vector is loaded for four of them."""
    none = (zeros(), zeros(), zeros(), zeros())
    a, b, c, d = none, none, none, none
    for step in range(scales.shape[1]):
        k = step * STEP
        weights = load_rows(w, n, k)
        a = add_row(a, weights, load(x, m, k), scales[m, step])
        b = add_row(b, weights, load(x, m + 1, k), scales[m + 1, step])
        c = add_row(c, weights, load(x, m + 2, k), scales[m + 2, step])
        d = add_row(d, weights, load(x, m + 3, k), scales[m + 3, step])
    return totals(a), totals(b), totals(c), totals(d)


@njit(fastmath={"reassoc", "nsz"})  # a maximum and a sum in any order, so that they become vectors; NaN stays NaN
def quantize_group(x, out):
    """x [at most 64] float32 -> out [64] int8; returns the scale (NaN unless all are finite) and the sum of out."""
    largest, not_finite = np.float32(0), np.float32(0)
    for k in range(x.shape[0]):
        largest = max(largest, abs(x[k]))
        not_finite += x[k] * np.float32(0)
    inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
    added = np.int32(0)
    for k in range(x.shape[0]):
        value = np.int32(np.rint(x[k] * inverse))
        out[k] = np.int8(value)
        added += value
    out[x.shape[0] :] = 0
    return largest / np.float32(127) + not_finite, added


@njit
def quantize_row(x, out, scales):
    """x [K] float32 -> out [K padded] int8, scales [groups]; returns what weights kept as value + 128 add too much."""
    too_much = np.float32(0)
    for step in range(scales.shape[0]):
        k = step * STEP
        scales[step], added = quantize_group(x[k : k + STEP], out[k : k + STEP])
        too_much += scales[step] * np.float32(128 * added)
    return too_much


@njit
def write(out, m, n, sums, too_much, scales, bias):
    """Four sums as results: out[m, n : n + 4], as far as out goes."""
    for i in range(ROWS):
        if n + i < out.shape[1]:
            out[m, n + i] = (sums[i] - too_much) * scales[n + i] + bias[n + i]


@compiled(parallel=True)
def int8_linear(x, weight, scales, bias, out):
    """out [N, M] = x [N, K] @ ((weight - 128) * scales).T + bias.

    x, out float32; weight [M padded to 4, K padded to 64] uint8; scales, bias [M] float32.
    """
    quantized = np.empty((min(BLOCK, x.shape[0]), weight.shape[1]), np.int8)
    x_scales = np.empty((quantized.shape[0], weight.shape[1] // STEP), np.float32)
    too_much = np.empty(quantized.shape[0], np.float32)
    for first in range(0, x.shape[0], BLOCK):
        count = min(BLOCK, x.shape[0] - first)
        if count < ROWS:  # sooner done than shared out
            for m in range(count):
                too_much[m] = quantize_row(x[first + m], quantized[m], x_scales[m])
        else:
            for m in prange(count):
                too_much[m] = quantize_row(x[first + m], quantized[m], x_scales[m])
        for tile in prange(weight.shape[0] // ROWS):
            n = tile * ROWS
            fours = count - count % ROWS
            for m in range(0, fours, ROWS):
                a, b, c, d = four_rows(quantized, x_scales, weight, m, n)
                write(out, first + m, n, a, too_much[m], scales, bias)
                write(out, first + m + 1, n, b, too_much[m + 1], scales, bias)
                write(out, first + m + 2, n, c, too_much[m + 2], scales, bias)
                write(out, first + m + 3, n, d, too_much[m + 3], scales, bias)
            for m in range(fours, count):
                sums = one_row(quantized, x_scales, weight, m, n)
                write(out, first + m, n, sums, too_much[m], scales, bias)
