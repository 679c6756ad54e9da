"""What the products of quantized_numba.py and stored_numba.py share: the walk over a tile's groups of values of K."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from .quantized_layout import QuantizedLayout, by_type
from .simd import FLOATS, LANES, pointer_to, shape_of
from .tiled_numba import case_for_each_count, factor, multiply_tile

I8 = ir.IntType(8)
Sums = dict[tuple[int, int], ir.Value]  # where sums are kept, by row of x and vector of the tile
# Generates the products of one group, which it adds to the sums: (context, builder, layout, group, words, sums,
# vectors), with `words` the group's words in each row of x.
AddGroup = Callable[[Any, ir.IRBuilder, QuantizedLayout, ir.Value, list[ir.Value], Sums, range], None]


def add_product(
    layouts: Iterable[QuantizedLayout], prepare: Callable[..., Any], words: int, add_group: AddGroup
) -> None:
    """Let compiled code multiply by matrices in these layouts.

    Args:
        layouts: those that the product is for.
        prepare: a compiled function from x [N, K] float32 to what the product reads, `words` elements for each group.
        words: elements of a group of a prepared row.
        add_group: generates the products of one group.
    """
    known = by_type(layouts)

    @overload(factor)
    def prepared(x, kind):
        return (lambda x, kind: prepare(x)) if kind.dtype in known else None

    @intrinsic
    def multiply_groups(
        typing: Any, sums: types.Array, x: types.Array, m: types.Integer, count: types.Integer, w: types.Array,
        tile: types.Integer,
    ) -> tuple[Any, Callable]:  # fmt: skip
        generate = case_for_each_count(_over_groups(known[w.dtype], words, add_group))
        return types.none(sums, x, types.intp, types.intp, w, types.intp), generate

    @overload(multiply_tile)
    def multiplied(sums, x, m, count, w, tile):
        if w.dtype in known:
            return lambda sums, x, m, count, w, tile: multiply_groups(sums, x, m, count, w, tile)


def _over_groups(layout: QuantizedLayout, words: int, add_group: AddGroup) -> Callable[..., None]:
    def multiply_rows(
        context: Any, builder: ir.IRBuilder, signature: Any, args: Any, num_rows: int, vectors: range
    ) -> None:
        """Generate the products of num_rows rows of x with a tile. vectors: those of the tile that are multiplied."""
        to, x, m, _, w, tile = args
        size = m.type
        num_groups = builder.udiv(shape_of(context, builder, signature.args[1], x)[1], size(words))
        tile_at = builder.bitcast(pointer_to(context, builder, signature.args[4], w, [tile, size(0)]), I8.as_pointer())
        rows = [
            pointer_to(context, builder, signature.args[1], x, [builder.add(m, size(r)), size(0)])
            for r in range(num_rows)
        ]
        sums = zeros(builder, FLOATS, num_rows, vectors)
        with cgutils.for_range(builder, num_groups, intp=size) as loop:
            group = builder.gep(tile_at, [times_plus(builder, loop.index, layout.group_bytes, layout.head)])
            in_rows = [builder.gep(row, [builder.mul(loop.index, size(words))]) for row in rows]
            add_group(context, builder, layout, group, in_rows, sums, vectors)
        for (r, v), place in sums.items():
            total = builder.load(place)
            if layout.head:
                total = builder.fmul(total, load(builder, tile_at, size(4 * LANES * v), FLOATS))
            element = pointer_to(context, builder, signature.args[0], to, [size(r), size(v * LANES)])
            builder.store(total, builder.bitcast(element, FLOATS.as_pointer()), align=4)

    return multiply_rows


def zeros(builder: ir.IRBuilder, of: ir.Type, num_rows: int, vectors: range) -> Sums:
    """Return sums that are 0, also in the next turn of a loop."""
    sums = {(r, v): cgutils.alloca_once(builder, of) for r in range(num_rows) for v in vectors}
    for place in sums.values():
        builder.store(ir.Constant(of, None), place)
    return sums


def times_plus(builder: ir.IRBuilder, index: ir.Value, times: int, plus: int) -> ir.Value:
    return builder.add(builder.mul(index, index.type(times)), index.type(plus))


def load(builder: ir.IRBuilder, pointer: ir.Value, index: ir.Value, of: ir.Type) -> ir.Value:
    return builder.load(builder.bitcast(builder.gep(pointer, [index]), of.as_pointer()), align=1)
