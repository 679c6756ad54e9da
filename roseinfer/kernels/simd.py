"""Vector registers for Numba's loops: a value of the types here is 16 numbers of 32 bits, one in each lane.

LLVM makes vectors of a plain loop by itself, and decides by itself what to keep in registers. Where a loop is fast only
with its sums there, it is written with these functions, each the LLVM IR of one vector operation (or of a few that
belong together). A CPU with narrower registers gets several instructions for each. No index is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16
I32, F32 = ir.IntType(32), ir.FloatType()
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)


class Lanes(types.Type):
    """16 whole numbers (or four bytes in each lane), or 16 float32."""


int_lanes, float_lanes = Lanes("int32x16"), Lanes("float32x16")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, FLOATS if kind is float_lanes else INTS)


@intrinsic
def zeros(typing: Any) -> tuple[Any, Callable]:
    return float_lanes(), lambda context, builder, signature, args: ir.Constant(FLOATS, None)


@intrinsic
def splat(typing: Any, value: types.Float) -> tuple[Any, Callable]:
    """Return the same number in every lane."""
    return float_lanes(types.float32), lambda context, builder, signature, args: in_every_lane(builder, args[0])


@intrinsic
def load(typing: Any, array: types.Array, row: types.Integer, column: types.Integer) -> tuple[Any, Callable]:
    """Return array[row, column : column + 16], float32."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load(address(context, builder, signature, args, FLOATS), align=4)

    return float_lanes(array, types.intp, types.intp), generate


@intrinsic
def store(
    typing: Any, array: types.Array, row: types.Integer, column: types.Integer, lanes: Lanes
) -> tuple[Any, Callable]:
    """Store to array[row, column : column + 16], float32, as far as the row goes."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        *where, lanes = args
        _, width = shape_of(context, builder, signature.args[0], args[0])
        left = in_every_lane(builder, builder.trunc(builder.sub(width, args[2]), I32))
        mask = builder.icmp_signed("<", INTS(list(range(LANES))), left)
        pointer = address(context, builder, signature, where, FLOATS)
        takes = [FLOATS, pointer.type, I32, mask.type]
        masked_store = function(builder, "llvm.masked.store.v16f32.p0v16f32", ir.VoidType(), takes)
        builder.call(masked_store, [lanes, pointer, I32(4), mask])
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, lanes), generate


@intrinsic
def add(typing: Any, a: Lanes, b: Lanes) -> tuple[Any, Callable]:
    return a(a, b), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def maximum(typing: Any, a: Lanes, b: Lanes) -> tuple[Any, Callable]:
    """Return the larger of each two numbers, and b's where one of them is NaN."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), generate


@intrinsic
def largest(typing: Any, lanes: Lanes) -> tuple[Any, Callable]:
    """Return the largest of 16 float32."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        [lanes] = args
        for left in (8, 4, 2, 1):
            a, b = (part(builder, lanes, range(first, first + left)) for first in (0, left))
            lanes = builder.select(builder.fcmp_ordered(">", a, b), a, b)
        return builder.extract_element(lanes, I32(0))

    return types.float32(lanes), generate


@intrinsic
def multiply_add(typing: Any, a: Lanes, b: Lanes, c: Lanes) -> tuple[Any, Callable]:
    """Return a * b + c in float32, rounded once."""
    return a(a, b, c), lambda context, builder, signature, args: fused(builder, *args)


@intrinsic
def sixteen_dots(
    typing: Any, a: types.Array, row: types.Integer, b: types.Array, first: types.Integer, last: types.Integer
) -> tuple[Any, Callable]:
    """Return in lane i the dot product of a[row] and b[min(first + i, last)], float32 and a multiple of 16 long."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        a, row, b, first, last = args
        _, width = shape_of(context, builder, signature.args[0], a)
        start = context.get_constant(types.intp, 0)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None)) for _ in range(LANES)]
        left = pointer_to(context, builder, signature.args[0], a, [row, start])
        rights = []
        for lane in range(LANES):
            wanted = builder.add(first, ir.Constant(first.type, lane))
            there = builder.select(builder.icmp_signed("<", wanted, last), wanted, last)
            rights.append(pointer_to(context, builder, signature.args[2], b, [there, start]))

        def at(pointer: ir.Value, column: ir.Value) -> ir.Value:
            return builder.load(builder.bitcast(builder.gep(pointer, [column]), FLOATS.as_pointer()), align=4)

        with cgutils.for_range_slice(builder, start, width, ir.Constant(width.type, LANES), width.type) as (column, _):
            values = at(left, column)
            for total, right in zip(sums, rights, strict=True):
                builder.store(fused(builder, values, at(right, column), builder.load(total)), total)
        return _total_of_each(builder, [builder.load(total) for total in sums])

    return float_lanes(a, types.intp, b, types.intp, types.intp), generate


def _total_of_each(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """Return in lane i the sum of the lanes of vectors[i], for 16 of them.

    Two at a time share a vector, in which each has half as many lanes as before: the halves that it had, added.
    """
    lanes = LANES  # that each sum still has
    while len(vectors) > 1:
        half, lanes = len(vectors) // 2, lanes // 2
        starts = [of + first for first in range(0, LANES, 2 * lanes) for of in (0, LANES)]
        lower, upper = ([start + half_of + i for start in starts for i in range(lanes)] for half_of in (0, lanes))
        vectors = [
            builder.fadd(*[builder.shuffle_vector(a, b, picks(which)) for which in (lower, upper)])
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
        ]
    return vectors[0]


@intrinsic
def copy_row(
    typing: Any, to: types.Array, where: types.BaseTuple, array: types.Array, which: types.BaseTuple
) -> tuple[Any, Callable]:
    """Set to[*where] = array[*which]: the last axis of two arrays of one dtype, which has no gaps in either."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        start = context.get_constant(types.intp, 0)
        rows = []
        for i in (0, 2):
            indices = zip(cgutils.unpack_tuple(builder, args[i + 1]), signature.args[i + 1], strict=True)
            whole = [context.cast(builder, index, kind, types.intp) for index, kind in indices]
            rows.append(pointer_to(context, builder, signature.args[i], args[i], [*whole, start]))
        length = shape_of(context, builder, signature.args[2], args[2])[-1]
        itemsize = context.get_abi_sizeof(context.get_data_type(array.dtype))
        cgutils.raw_memcpy(builder, *rows, length, itemsize)
        return context.get_dummy_value()

    return types.none(to, where, array, which), generate


# What intrinsics are written with


def shape_of(context: Any, builder: ir.IRBuilder, kind: Any, array: ir.Value) -> list[ir.Value]:
    return cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, array).shape)


def pointer_to(
    context: Any, builder: ir.IRBuilder, kind: Any, array: ir.Value, indices: Sequence[ir.Value]
) -> ir.Value:
    view = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, view, indices)


def address(context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[ir.Value], of: ir.Type) -> ir.Value:
    """Return the address of an element: args are an array and its indices."""
    pointer = pointer_to(context, builder, signature.args[0], args[0], args[1:])
    return builder.bitcast(pointer, of.as_pointer())


def in_every_lane(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(undefined, value, I32(0)), undefined, picks([0] * LANES))


def fused(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    return builder.call(function(builder, "llvm.fma.v16f32", FLOATS, [FLOATS] * 3), [a, b, c])


def function(builder: ir.IRBuilder, name: str, returns: ir.Type, takes: Sequence[ir.Type]) -> ir.Function:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(returns, takes), name)


def part(builder: ir.IRBuilder, vector: ir.Value, which: Sequence[int]) -> ir.Value:
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), picks(which))


def picks(which: Sequence[int]) -> ir.Constant:
    return ir.VectorType(I32, len(which))(list(which))
