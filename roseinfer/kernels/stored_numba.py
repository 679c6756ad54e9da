"""x @ W.T on a CPU with W in a GGUF file's own blocks of 32 values (Q8_0, Q4_0, Q4_1), x and sums in float32.

A block has a scale for its 32 values of a row, in float16, and in Q4_1 a minimum. A value is scale * q, scale * (q - 8)
or scale * q + minimum. Nothing is rounded again: the values of q are widened in registers, multiplied by x as they are,
and the sum over a block by its scale. So a result is that of the dequantised matrix, but for the order of sums.

W [M, K] lies in tiles of TILE rows, as in tiled_numba.py. A tile has for each block the scales of its rows, their
minima, and then the block's bytes one after another, each of all rows: byte i of a block in 4 bits has the values i and
i + 16. So a product reads one run of bytes from end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from torch import Tensor

from roseinfer.graphs.operation import operation

from .numba_calls import compiled, run_parallel
from .simd import FLOATS, INTS, LANES, fused, in_every_lane, pointer_to, shape_of
from .tiled_numba import GELU, STORE, TILE, case_for_each_count, factor, multiply_tile, multiply_tiled

BLOCK = 32  # values of K that share a scale
WORDS = BLOCK + 1  # of a block of x, float32: its values, and their sum
I8 = ir.IntType(8)
BYTES, HALVES = ir.VectorType(I8, LANES), ir.VectorType(ir.HalfType(), LANES)


@dataclass(frozen=True)
class StoredLayout:
    """A kind of blocks. head: how many float16 a block begins with. offset: what is taken from a value of q.

    dtype: the type of a tile's elements, by which compiled code knows the kind.
    """

    bits: int
    head: int
    offset: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """The bytes of a block of one row, in the file as in memory."""
        return 2 * self.head + BLOCK * self.bits // 8

    def shape(self, num_rows: int, width: int) -> tuple[int, int]:
        """Return the shape of W [num_rows, width] in tiles, in elements of `dtype`."""
        num_bytes = width // BLOCK * TILE * self.block_bytes
        return -(-num_rows // TILE), num_bytes // self.dtype.itemsize


STORED = {
    "Q8_0": StoredLayout(bits=8, head=1, offset=0, dtype=torch.int8),
    "Q4_0": StoredLayout(bits=4, head=1, offset=8, dtype=torch.uint16),
    "Q4_1": StoredLayout(bits=4, head=2, offset=0, dtype=torch.uint32),
}
LAYOUTS = {numba.from_dtype(np.dtype(str(layout.dtype).removeprefix("torch."))): layout for layout in STORED.values()}


def stored_tiles(raw: np.ndarray, layout: StoredLayout) -> np.ndarray:
    """Arrange a file's rows, uint8 [M, bytes], as the product reads them; rows up to a whole tile are zeros."""
    num_tiles, head = -(-len(raw) // TILE), 2 * layout.head
    padded = np.zeros((num_tiles * TILE, raw.shape[1]), np.uint8)
    padded[: len(raw)] = raw
    blocks = padded.reshape(num_tiles, TILE, -1, layout.block_bytes)
    heads = blocks[..., :head].reshape(*blocks.shape[:3], layout.head, 2).transpose(0, 2, 3, 1, 4)
    values = blocks[..., head:].transpose(0, 2, 3, 1)
    parts = [part.reshape(num_tiles, blocks.shape[2], -1) for part in (heads, values)]
    tiles = np.concatenate(parts, axis=2).reshape(num_tiles, -1)
    return tiles.view(np.dtype(str(layout.dtype).removeprefix("torch.")))


@operation
def linear_stored(x: Tensor, weight: Tensor, bias: Tensor, num_rows: int, gelu: bool = False) -> Tensor:
    """Return x [N, K] @ W.T + bias, in x's dtype.

    weight: `stored_tiles` of W [num_rows, K]. bias: float32, [num_rows], or [0] for none. gelu: applied to the result
    (the tanh form).
    """
    out = torch.empty(len(x), num_rows)
    rows = x.float().contiguous().numpy()
    run_parallel(multiply, out.numpy(), rows, weight.numpy(), bias.numpy(), GELU if gelu else STORE)
    return out.to(x.dtype)


@compiled()
def multiply(out, x, w, bias, then):
    """Run multiply_tiled on x [N, K] float32, K a multiple of BLOCK."""
    multiply_tiled(out, factor(x, w), w, bias, then)


@njit
def with_sums(x):
    """Return x [N, K] float32 with the sum of each block behind it: [N, K / BLOCK * WORDS]."""
    out = np.empty((x.shape[0], x.shape[1] // BLOCK * WORDS), np.float32)
    for n in range(len(x)):
        for block in range(x.shape[1] // BLOCK):
            at, total = block * WORDS, np.float32(0)
            for k in range(BLOCK):
                value = x[n, block * BLOCK + k]
                out[n, at + k] = value
                total += value
            out[n, at + BLOCK] = total
    return out


@overload(factor)
def _factor(x, kind):
    return (lambda x, kind: with_sums(x)) if kind.dtype in LAYOUTS else None


@overload(multiply_tile)
def _multiply_tile(sums, x, m, count, w, tile):
    if w.dtype in LAYOUTS:
        return lambda sums, x, m, count, w, tile: multiply_stored(sums, x, m, count, w, tile)


@intrinsic
def multiply_stored(
    typing: Any, sums: types.Array, x: types.Array, m: types.Integer, count: types.Integer, w: types.Array,
    tile: types.Integer,
) -> tuple[Any, Callable]:  # fmt: skip
    """Compute multiply_tile, with x of `with_sums`, and w of `stored_tiles`."""
    return types.none(sums, x, types.intp, types.intp, w, types.intp), case_for_each_count(_multiply_rows)


def _multiply_rows(
    context: Any, builder: ir.IRBuilder, signature: Any, args: Any, num_rows: int, vectors: range
) -> None:
    """Generate the products of num_rows rows of x with a tile. vectors: those of the tile that are multiplied."""
    sums, x, m, _, w, tile = args
    layout, size = LAYOUTS[signature.args[4].dtype], m.type
    num_blocks = builder.udiv(shape_of(context, builder, signature.args[1], x)[1], size(WORDS))
    tile_at = builder.bitcast(pointer_to(context, builder, signature.args[4], w, [tile, size(0)]), I8.as_pointer())
    rows = [
        pointer_to(context, builder, signature.args[1], x, [builder.add(m, size(r)), size(0)]) for r in range(num_rows)
    ]
    each = [(r, v) for r in range(num_rows) for v in vectors]
    none = ir.Constant(FLOATS, None)
    totals, parts = ({one: cgutils.alloca_once(builder, FLOATS) for one in each} for _ in range(2))
    for one in each:
        builder.store(none, totals[one])
    with cgutils.for_range(builder, num_blocks, intp=size) as loop:
        block = builder.gep(tile_at, [builder.mul(loop.index, size(TILE * layout.block_bytes))])
        words = [builder.gep(row, [builder.mul(loop.index, size(WORDS))]) for row in rows]
        for one in each:
            builder.store(none, parts[one])
        _add_block(builder, layout, block, words, parts, vectors)
        scales = [{v: _halves(builder, block, 2 * (h * TILE + v * LANES)) for v in vectors} for h in range(layout.head)]
        for r, v in each:
            total = fused(builder, builder.load(parts[r, v]), scales[0][v], builder.load(totals[r, v]))
            if layout.head == 2:
                added = in_every_lane(builder, builder.load(builder.gep(words[r], [size(BLOCK)])))
                total = fused(builder, added, scales[1][v], total)
            builder.store(total, totals[r, v])
    for r, v in each:
        to = pointer_to(context, builder, signature.args[0], sums, [size(r), size(v * LANES)])
        builder.store(builder.load(totals[r, v]), builder.bitcast(to, FLOATS.as_pointer()), align=4)


def _add_block(
    builder: ir.IRBuilder,
    layout: StoredLayout,
    block: ir.Value,
    words: list[ir.Value],
    parts: dict[tuple[int, int], ir.Value],
    vectors: range,
) -> None:
    """Add the products of a block's values of q to `parts`. words: the block in each row of x."""
    size, first = cgutils.intp_t, 2 * layout.head * TILE
    per_byte = 8 // layout.bits
    with cgutils.for_range(builder, size(BLOCK // per_byte), intp=size) as loop:
        for v in vectors:
            at = builder.add(builder.mul(loop.index, size(TILE)), size(first + v * LANES))
            values = builder.load(builder.bitcast(builder.gep(block, [at]), BYTES.as_pointer()), align=1)
            for half, q in enumerate(_as_floats(builder, layout, values)):
                k = builder.add(loop.index, size(half * BLOCK // 2))
                for r, word in enumerate(words):
                    value = in_every_lane(builder, builder.load(builder.gep(word, [k])))
                    builder.store(fused(builder, q, value, builder.load(parts[r, v])), parts[r, v])


def _as_floats(builder: ir.IRBuilder, layout: StoredLayout, values: ir.Value) -> list[ir.Value]:
    """Return 16 bytes as float32: one vector of them in 8 bits, two in 4 bits, of the lower and of the upper halves."""
    if layout.bits == 8:
        return [builder.sitofp(builder.sext(values, INTS), FLOATS)]
    wide = builder.zext(values, INTS)
    halves = builder.and_(wide, INTS([15] * LANES)), builder.lshr(wide, INTS([4] * LANES))
    offset = INTS([layout.offset] * LANES)
    return [builder.sitofp(builder.sub(half, offset) if layout.offset else half, FLOATS) for half in halves]


def _halves(builder: ir.IRBuilder, block: ir.Value, at: int) -> ir.Value:
    """Return 16 numbers in float16 as float32."""
    pointer = builder.bitcast(builder.gep(block, [cgutils.intp_t(at)]), HALVES.as_pointer())
    return builder.fpext(builder.load(pointer, align=1), FLOATS)
