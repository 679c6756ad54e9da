"""x @ W.T on a CPU with W in the blocks of a GGUF file (quantized_layout.py), x and sums in float32.

Nothing is rounded again: the values of q are widened in registers, multiplied by x as they are, and the sum over a
block by its scale. So a result is that of the dequantised matrix, but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils

from .grouped_numba import I8, Sums, add_product, load, times_plus, zeros
from .quantized_layout import OF_FILES, QuantizedLayout
from .simd import FLOATS, INTS, LANES, fused, in_every_lane
from .tiled_numba import TILE

BYTES, HALVES = ir.VectorType(I8, LANES), ir.VectorType(ir.HalfType(), LANES)


def with_sums_of(block: int) -> Callable[..., Any]:
    """Return a compiled function from x [N, K] float32 to the same with the sum of each block behind it.

    Its result is [N, K / block * (block + 1)].
    """

    @njit
    def with_sums(x):
        out = np.empty((x.shape[0], x.shape[1] // block * (block + 1)), np.float32)
        for n in range(len(x)):
            for b in range(x.shape[1] // block):
                at, total = b * (block + 1), np.float32(0)
                for k in range(block):
                    value = x[n, b * block + k]
                    out[n, at + k] = value
                    total += value
                out[n, at + block] = total
        return out

    return with_sums


def _add_block(
    context: Any,
    builder: ir.IRBuilder,
    layout: QuantizedLayout,
    block: ir.Value,
    words: list[ir.Value],
    totals: Sums,
    vectors: range,
) -> None:
    """Add a block's products, times its scales, to `totals`. words: the block in each row of x."""
    size = cgutils.intp_t
    parts = zeros(builder, FLOATS, len(words), vectors)
    per_byte = 8 // layout.bits
    with cgutils.for_range(builder, size(layout.group // per_byte), intp=size) as loop:
        for v in vectors:
            at = times_plus(builder, loop.index, TILE, layout.group_head + v * LANES)
            for half, q in enumerate(_as_floats(builder, layout, load(builder, block, at, BYTES))):
                k = builder.add(loop.index, size(half * layout.group // 2))
                for r, word in enumerate(words):
                    value = in_every_lane(builder, builder.load(builder.gep(word, [k])))
                    builder.store(fused(builder, q, value, builder.load(parts[r, v])), parts[r, v])
    scales, *minima = [
        {v: _numbers(builder, layout, block, head + layout.number_bytes * v * LANES) for v in vectors}
        for head in range(0, layout.group_head, layout.number_bytes * TILE)
    ]
    for r, v in totals:
        total = fused(builder, builder.load(parts[r, v]), scales[v], builder.load(totals[r, v]))
        for least in minima:
            added = in_every_lane(builder, builder.load(builder.gep(words[r], [size(layout.group)])))
            total = fused(builder, added, least[v], total)
        builder.store(total, totals[r, v])


def _as_floats(builder: ir.IRBuilder, layout: QuantizedLayout, values: ir.Value) -> list[ir.Value]:
    """Return 16 bytes as float32: one vector of them in 8 bits, two in 4 bits, of the lower and of the upper halves."""
    if layout.bits == 8:
        return [builder.sitofp(builder.sext(values, INTS), FLOATS)]
    wide = builder.zext(values, INTS)
    halves = builder.and_(wide, INTS([15] * LANES)), builder.lshr(wide, INTS([4] * LANES))
    offset = INTS([layout.offset] * LANES)
    return [builder.sitofp(builder.sub(half, offset) if layout.offset else half, FLOATS) for half in halves]


def _numbers(builder: ir.IRBuilder, layout: QuantizedLayout, block: ir.Value, at: int) -> ir.Value:
    """Return 16 numbers of a block's head as float32."""
    if layout.number_bytes == 4:
        return load(builder, block, cgutils.intp_t(at), FLOATS)
    return builder.fpext(load(builder, block, cgutils.intp_t(at), HALVES), FLOATS)


for group in {layout.group for layout in OF_FILES}:
    of_group = [layout for layout in OF_FILES if layout.group == group]
    add_product(of_group, with_sums_of(group), group + 1, _add_block)
