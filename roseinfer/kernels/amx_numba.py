"""Products of bfloat16 by the tile registers of AMX, for tiled_numba.py on CPUs that have them.

A tile register has 16 rows of 64 bytes. One instruction multiplies 16 rows of x, each with 32 values of K, by 16 rows
of W, and adds the results to 16 x 16 sums in float32 (Intel's manual, "Advanced Matrix Extensions"). Subnormal values
count as 0. W comes in the pairs that tiled_numba.py keeps for any CPU, which is also the order that the instruction
wants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .simd import I32, function, pointer_to, shape_of

I8 = ir.IntType(8)
PLACE = I8.as_pointer()
ROWS = 32  # of x that meet a tile of W at once: two registers of x by two of W
SIDE = 16  # rows of a register, and pairs of bfloat16 or sums in one of its rows
UPPER = -65536  # the upper half of 32 bits
SUMS, OF_X, OF_W = (0, 1, 2, 3), (4, 5), (6, 7)  # registers; sums[2 * i + j] are of x's i and W's j
# What Numba compiles for: another processor than this one, if its settings name one.
FEATURES = llvm.get_host_cpu_features().flatten() if numba.config.CPU_NAME is None else numba.config.CPU_FEATURES or ""
# The system gives a process these registers when it asks for them, which PyTorch's function does.
HAS_INSTRUCTIONS = "+amx-bf16" in FEATURES.split(",")
HAS_AMX = HAS_INSTRUCTIONS and torch.cpu._init_amx()
# Numba keeps code on disk by these features: this process must not load code that uses the registers.
if HAS_INSTRUCTIONS and not HAS_AMX:
    numba.config.CPU_FEATURES = FEATURES.replace("+amx-bf16", "-amx-bf16")


@intrinsic
def multiply_blocks(
    typing: Any, sums: types.Array, x: types.Array, m: types.Integer, count: types.Integer, w: types.Array,
    tile: types.Integer,
) -> tuple[Any, Callable]:  # fmt: skip
    """Set sums[:count] = x[m : m + count] @ w[tile] over all whole blocks of 16 pairs of K, with count up to ROWS."""
    return types.none(sums, x, types.intp, types.intp, w, types.intp), _generate


def _generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    count = args[3]
    with builder.if_else(builder.icmp_signed(">", count, count.type(SIDE))) as (two, one):
        with two:
            _multiply(context, builder, signature, args, 2)
        with one:
            _multiply(context, builder, signature, args, 1)
    return context.get_dummy_value()


def _multiply(context: Any, builder: ir.IRBuilder, signature: Any, args: Any, num_x: int) -> None:
    """Generate the products of num_x registers of x, the last of them with the rows that are left."""
    sums, x, m, count, w, tile = args
    size = m.type
    zero, side = size(0), size(SIDE)
    _, width = shape_of(context, builder, signature.args[1], x)
    _, depth, columns = shape_of(context, builder, signature.args[4], w)

    def call(name: str, *given: ir.Value) -> None:
        builder.call(function(builder, f"llvm.x86.{name}", ir.VoidType(), [one.type for one in given]), given)

    def at(array: int, *indices: ir.Value) -> ir.Value:
        return builder.bitcast(pointer_to(context, builder, signature.args[array], args[array], indices), PLACE)

    def four_times(number: ir.Value) -> ir.Value:
        return builder.mul(number, size(4))

    _configure(builder, call, count, num_x)
    pairs = [(i, j) for i in range(num_x) for j in range(2)]
    for i, j in pairs:
        call("tilezero", I8(SUMS[2 * i + j]))
    blocks = builder.mul(builder.sdiv(depth, side), side)
    with cgutils.for_range_slice(builder, zero, blocks, side, size) as (k, _):
        for i in range(num_x):
            call("tileloadd64", I8(OF_X[i]), at(1, builder.add(m, size(SIDE * i)), k), four_times(width))
        for j in range(2):
            call("tileloadd64", I8(OF_W[j]), at(4, tile, k, size(SIDE * j)), four_times(columns))
        for i, j in pairs:
            call("tdpbf16ps", I8(SUMS[2 * i + j]), I8(OF_X[i]), I8(OF_W[j]))
    for i, j in pairs:
        call("tilestored64", I8(SUMS[2 * i + j]), at(0, size(SIDE * i), size(SIDE * j)), four_times(columns))
    call("tilerelease")


def _configure(builder: ir.IRBuilder, call: Callable[..., None], count: ir.Value, num_x: int) -> None:
    """Say how many rows each register has: those of the last register of x, and of its sums, are the rest of count."""
    place = cgutils.alloca_once(builder, ir.ArrayType(I8, 64))
    builder.store(ir.Constant(ir.ArrayType(I8, 64), bytearray([1] + [0] * 63)), place)
    start = builder.bitcast(place, PLACE)
    rest = builder.trunc(builder.sub(count, count.type(SIDE * (num_x - 1))), I8)
    rows = {register: I8(SIDE) for register in OF_W}
    for i in range(num_x):
        own = rest if i == num_x - 1 else I8(SIDE)
        rows |= {OF_X[i]: own, SUMS[2 * i]: own, SUMS[2 * i + 1]: own}
    for register, number in rows.items():
        builder.store(I8(64), builder.gep(start, [I32(16 + 2 * register)]))  # bytes of a row, in 16 bits
        builder.store(number, builder.gep(start, [I32(48 + register)]))
    call("ldtilecfg", start)


@njit
def multiply_pairs(sums, x, m, count, w, tile):
    """Set sums[:count] = x[m : m + count] @ w[tile], with both in pairs of bfloat16, and count from 1 to ROWS."""
    multiply_blocks(sums, x, m, count, w, tile)
    for k in range(w.shape[1] // SIDE * SIDE, w.shape[1]):
        for r in range(count):
            low, high = np.int32(x[m + r, k] << 16).view(np.float32), np.int32(x[m + r, k] & UPPER).view(np.float32)
            for i in range(w.shape[2]):
                pair = w[tile, k, i]
                sums[r, i] += low * np.int32(pair << 16).view(np.float32) + high * np.int32(pair & UPPER).view(
                    np.float32
                )
