"""A linear layer in 8 bits on a CPU: x @ W.T + b, W in int8 with one scale per row, x quantised on the way in.

Absmax quantisation: values are divided by the largest absolute one / 127, and rounded. Of W each row has one scale,
of x each 64 values of a row: after an activation function a few values are far larger than the others, and with one
scale for a whole row the others would be rounded to nothing. Sums are made in a fixed order, so a row of the result is
the same to the bit whatever other rows are beside it.

CPUs have an instruction for four products of bytes and their sum in each of 16 lanes, which no compiler here finds by
itself (so simd.py). Where a CPU has no such instruction, the same sum is written with multiplications. W lies in
memory as that instruction takes it, in tiles of 64 rows, each vector with four values of 16 rows; and its sums stay in
registers while 4 rows of x meet a tile, so that each vector of W is loaded for 4 rows, and each four values of x for 64
(Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).

That instruction multiplies unsigned by signed bytes. W is therefore kept as its value + 128, and what that adds to a
result, 128 times the sum of the row of x, is taken away again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from torch import Tensor

from roseinfer.graphs.operation import operation

from .numba_calls import compiled, run_parallel
from .paged_numba import SUMS, exp_of_negative
from .simd import (
    FLOATS,
    I32,
    INTS,
    LANES,
    Lanes,
    address,
    float_lanes,
    function,
    in_every_lane,
    int_lanes,
    multiply_add,
    part,
    picks,
    splat,
    store,
    zeros,
)

STEP = 64  # values of K that have a scale in x: rows of W are padded to a multiple of it
TILE = 4 * LANES  # rows of W that are multiplied at a time, four values of 16 of them in a vector; W is padded to it
ROWS = 4  # rows of x that are multiplied with a tile at a time
BLOCK = 64  # rows of x that are quantised before W is read: they stay in a core's L2
FEW = 16  # rows of x below which one thread quantises them
WITHOUT_SIGN, ROUNDING, ROUNDING_BITS = np.int32(0x7FFFFFFF), np.float32(1.5 * 2**23), np.int32(0x4B400000)
SMALLEST = np.float32(2.0**-119)  # absolute value that is not rounded to zero: 127 / it is still finite


@operation
def linear_int8(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor, gelu: bool = False) -> Tensor:
    """x [N, K] @ W.T * scales + bias, in x's dtype, for W [M, K] of whole numbers from -127 to 127.

    weight: `tiles` of W, uint8. scales, bias: [M] float32. gelu: applied to the result (the tanh form).
    """
    out = torch.empty(len(x), len(scales))
    missing = -x.size(1) % STEP
    rows = F.pad(x.float(), (0, missing)) if missing else x.float().contiguous()
    run_parallel(int8_linear, rows.numpy(), weight.numpy(), scales.numpy(), bias.numpy(), gelu, out.numpy())
    return out.to(x.dtype)


def tiles_shape(num_rows: int, width: int) -> tuple[int, int, int]:
    """Shape of `tiles` of W [num_rows, width]."""
    return -(-num_rows // TILE), -(-width // STEP) * STEP // 4, TILE * 4


def tiles(values: np.ndarray) -> np.ndarray:
    """W [M, K] int8 as the kernel reads it: uint8 [tiles, K / 4, TILE * 4], padded with zeros.

    tiles[i, k, 4 * row + j] is W[TILE * i + row, 4 * k + j] + 128.
    """
    num_tiles, fours, _ = shape = tiles_shape(*values.shape)
    padded = np.full((num_tiles * TILE, fours * 4), 128, np.uint8)
    padded[: len(values), : values.shape[1]] = values.view(np.uint8) + np.uint8(128)
    return padded.reshape(num_tiles, TILE, fours, 4).transpose(0, 2, 1, 3).reshape(shape)


@intrinsic
def no_products(typing: Any) -> tuple[Any, Callable]:
    """16 whole numbers at 0."""
    return int_lanes(), lambda context, builder, signature, args: ir.Constant(INTS, None)


@intrinsic
def load_fours(
    typing: Any, weight: types.Array, tile: types.Integer, four: types.Integer, byte: types.Integer
) -> tuple[Any, Callable]:
    """The 64 bytes weight[tile, four, byte : byte + 64]: four values of 16 rows of W."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load(address(context, builder, signature, args, INTS), align=1)

    return int_lanes(weight, types.intp, types.intp, types.intp), generate


@intrinsic
def load_four(typing: Any, x: types.Array, row: types.Integer, k: types.Integer) -> tuple[Any, Callable]:
    """The bytes x[row, k : k + 4], the same in every lane."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return in_every_lane(builder, builder.load(address(context, builder, signature, args, I32), align=1))

    return int_lanes(x, types.intp, types.intp), generate


@intrinsic
def add_products(typing: Any, sums: Lanes, w: Lanes, x: Lanes) -> tuple[Any, Callable]:
    """sums[lane] + four products of unsigned bytes of w and signed bytes of x; exact."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return _four_products(context, builder, *args)

    return int_lanes(sums, w, x), generate


@intrinsic
def as_floats(typing: Any, lanes: Lanes) -> tuple[Any, Callable]:
    return float_lanes(lanes), lambda context, builder, signature, args: builder.sitofp(args[0], FLOATS)


def _four_products(context: Any, builder: ir.IRBuilder, sums: ir.Value, w: ir.Value, x: ir.Value) -> ir.Value:
    """Add four products of bytes, unsigned by signed, to a sum in each of 16 lanes."""
    features = context.codegen().magic_tuple()[2].split(",")
    if "+avx512vnni" in features:
        return _instruction(builder, [sums, w, x], 512)
    if "+avxvnni" in features:
        halves = [[part(builder, v, range(i, i + 8)) for v in (sums, w, x)] for i in (0, 8)]
        return builder.shuffle_vector(*[_instruction(builder, half, 256) for half in halves], picks(range(16)))
    as_bytes, as_ints = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(I32, 4 * LANES)
    wide_w = builder.zext(builder.bitcast(w, as_bytes), as_ints)
    wide_x = builder.sext(builder.bitcast(x, as_bytes), as_ints)
    products = builder.mul(wide_w, wide_x)
    for left in (32, 16):  # neighbours are added twice: from 64 to 16
        products = builder.add(*[part(builder, products, range(first, 2 * left, 2)) for first in (0, 1)])
    return builder.add(sums, products)


def _instruction(builder: ir.IRBuilder, vectors: list[ir.Value], bits: int) -> ir.Value:
    kinds = [vector.type for vector in vectors]
    return builder.call(function(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", kinds[0], kinds), vectors)


@njit
def load_tile(weight, tile, four):
    return (
        load_fours(weight, tile, four, 0),
        load_fours(weight, tile, four, 64),
        load_fours(weight, tile, four, 128),
        load_fours(weight, tile, four, 192),
    )


@njit
def add_row(products, w, x):
    """A tile of W with one row of x."""
    return (
        add_products(products[0], w[0], x),
        add_products(products[1], w[1], x),
        add_products(products[2], w[2], x),
        add_products(products[3], w[3], x),
    )


@njit
def scale_row(sums, products, scale):
    scales = splat(scale)
    return (
        multiply_add(as_floats(products[0]), scales, sums[0]),
        multiply_add(as_floats(products[1]), scales, sums[1]),
        multiply_add(as_floats(products[2]), scales, sums[2]),
        multiply_add(as_floats(products[3]), scales, sums[3]),
    )


@njit
def one_row(x, scales, w, m, tile):
    """x[m] times 64 rows of W."""
    none = (no_products(), no_products(), no_products(), no_products())
    sums = (zeros(), zeros(), zeros(), zeros())
    for step in range(scales.shape[1]):
        a = none
        for k in range(step * STEP, (step + 1) * STEP, 4):
            a = add_row(a, load_tile(w, tile, k // 4), load_four(x, m, k))
        sums = scale_row(sums, a, scales[m, step])
    return sums


@njit
def four_rows(x, scales, w, m, tile):
    """x[m], ..., x[m + 3] times 64 rows of W: 16 sums in registers, each vector is loaded for four of them."""
    none = (no_products(), no_products(), no_products(), no_products())
    empty = (zeros(), zeros(), zeros(), zeros())
    sums_a, sums_b, sums_c, sums_d = empty, empty, empty, empty
    for step in range(scales.shape[1]):
        a, b, c, d = none, none, none, none
        for k in range(step * STEP, (step + 1) * STEP, 4):
            weights = load_tile(w, tile, k // 4)
            a = add_row(a, weights, load_four(x, m, k))
            b = add_row(b, weights, load_four(x, m + 1, k))
            c = add_row(c, weights, load_four(x, m + 2, k))
            d = add_row(d, weights, load_four(x, m + 3, k))
        sums_a = scale_row(sums_a, a, scales[m, step])
        sums_b = scale_row(sums_b, b, scales[m + 1, step])
        sums_c = scale_row(sums_c, c, scales[m + 2, step])
        sums_d = scale_row(sums_d, d, scales[m + 3, step])
    return sums_a, sums_b, sums_c, sums_d


@njit
def quantize_group(x, out):
    """x [64] float32 -> out [64] int8; returns the scale (NaN unless all are finite) and the sum of out.

    In 32-bit integers throughout, which compilers turn into vectors: without their sign, floats are ordered as their
    bits are, and adding 1.5 * 2**23 to a small float leaves the nearest whole number in its last bits.
    """
    top = np.int32(0)
    for k in range(STEP):
        top = max(top, np.int32(np.float32(x[k]).view(np.int32) & WITHOUT_SIGN))
    largest = np.int32(top).view(np.float32)
    inverse = np.float32(127) / largest if largest > SMALLEST else np.float32(0)
    added = np.int32(0)
    for k in range(STEP):
        value = np.int32(np.float32(x[k] * inverse + ROUNDING).view(np.int32) - ROUNDING_BITS)
        out[k] = np.int8(value)
        added = np.int32(added + value)
    return largest / np.float32(127) + largest * np.float32(0), added


@njit
def quantize_row(x, out, scales):
    """x [K] float32 -> out [K] int8, scales [K / 64]; returns what weights kept as value + 128 add too much."""
    too_much = np.float32(0)
    for step in range(scales.shape[0]):
        k = step * STEP
        scales[step], added = quantize_group(x[k : k + STEP], out[k : k + STEP])
        too_much += scales[step] * np.float32(128 * added)
    return too_much


@njit(fastmath=SUMS, error_model="numpy")  # "numpy": no check for a division by 0, which would keep it from vectors
def gelu_tanh(x):
    """x times the normal distribution's share below x, by Hendrycks and Gimpel's approximation (2016)."""
    t = np.float32(1.5957691216) * (x + np.float32(0.044715) * x * x * x)
    small = exp_of_negative(-abs(t))
    return x * (np.float32(1) if t > 0 else small) / (np.float32(1) + small)


@njit
def write(out, m, n, sums, too_much, scales, bias, gelu):
    """The sums of a tile as results: out[m, n : n + TILE], as far as out goes."""
    store(out, m, n, sums[0])
    store(out, m, n + LANES, sums[1])
    store(out, m, n + 2 * LANES, sums[2])
    store(out, m, n + 3 * LANES, sums[3])
    row, scale, shift = out[m, n : n + TILE], scales[n : n + TILE], bias[n : n + TILE]
    for i in range(len(row)):
        row[i] = (row[i] - too_much) * scale[i] + shift[i]
    if gelu:
        for i in range(len(row)):
            row[i] = gelu_tanh(row[i])


@compiled(parallel=True)
def int8_linear(x, weight, scales, bias, gelu, out):
    """out [N, M] = x [N, K] @ ((weight - 128) * scales).T + bias, as linear_int8 has it.

    x, out float32; weight [tiles, K / 4, TILE * 4] uint8; scales, bias [M] float32. K is a multiple of 64.
    """
    quantized = np.empty((min(BLOCK, x.shape[0]), x.shape[1]), np.int8)
    x_scales = np.empty((quantized.shape[0], x.shape[1] // STEP), np.float32)
    too_much = np.empty(quantized.shape[0], np.float32)
    for first in range(0, x.shape[0], BLOCK):
        count = min(BLOCK, x.shape[0] - first)
        if count < FEW:  # sooner done than shared out
            for m in range(count):
                too_much[m] = quantize_row(x[first + m], quantized[m], x_scales[m])
        else:
            for m in prange(count):
                too_much[m] = quantize_row(x[first + m], quantized[m], x_scales[m])
        for tile in prange(weight.shape[0]):
            n = tile * TILE
            fours = count - count % ROWS
            for m in range(0, fours, ROWS):
                a, b, c, d = four_rows(quantized, x_scales, weight, m, tile)
                write(out, first + m, n, a, too_much[m], scales, bias, gelu)
                write(out, first + m + 1, n, b, too_much[m + 1], scales, bias, gelu)
                write(out, first + m + 2, n, c, too_much[m + 2], scales, bias, gelu)
                write(out, first + m + 3, n, d, too_much[m + 3], scales, bias, gelu)
            for m in range(fours, count):
                sums = one_row(quantized, x_scales, weight, m, tile)
                write(out, first + m, n, sums, too_much[m], scales, bias, gelu)
