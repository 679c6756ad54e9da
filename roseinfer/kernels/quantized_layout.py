"""Matrices in 8 and in 4 bits: how they are rounded, and how their values lie in memory for their products.

Two are rounded here, for quantized_numba.py:

8 bits: whole numbers from -127 to 127, and a float32 scale for each row, its largest absolute value / 127.
4 bits: whole numbers from -8 to 7, and a bfloat16 scale for each GROUP values of a row. The value that is the largest
without its sign becomes -8, so that all 16 numbers are of use (as in llama.cpp's q4_0).

W [M, K] lies in tiles of TILE rows, as in tiled_numba.py. Four neighbouring values of K of 16 rows are the 64 bytes of
a vector, each byte a value + 128; in 4 bits each byte has a value + 8 of one vector in its lower half, and of the next
one in its upper half. A tile in 8 bits begins with the scales of its rows; in 4 bits each group of it begins with its
own. So a product reads one run of bytes from end to end.

Four are for the blocks of GGUF files, for stored_numba.py: three kinds of 32 values as they are, and WIDE, which holds
the values of others exactly (models/gguf_wide.py). A block has a scale for its values of a row, in float16, and in Q4_1
a minimum; in WIDE it has 16 values in 8 bits, and both numbers in float32. A value is scale * q, scale * (q - 8) or
scale * q + minimum. A tile has for each block the scales of its rows, their minima, and then the block's bytes one
after another, each of all rows: byte i of a block in 4 bits has the values i and i + 16.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numba
import numpy as np
import torch

from .tiled_numba import TILE

GROUP = 64  # values of K that share a scale, in x, and in W in 4 bits
BLOCK = 32  # values of K that share a scale in a GGUF file


@dataclass(frozen=True)
class QuantizedLayout:
    """How a matrix in few bits lies in memory: a tile has `head` bytes, then groups of `group_head` bytes and values.

    dtype: the type of a tile's elements, by which compiled code knows the layout. offset: added to a value.
    group: values of K in a group. number_bytes: of a scale or a minimum in the group's head.
    """

    bits: int
    dtype: torch.dtype
    offset: int
    head: int
    group_head: int
    group: int = GROUP
    number_bytes: int = 2

    @property
    def group_bytes(self) -> int:
        return self.group_head + self.group * TILE * self.bits // 8

    def shape(self, num_rows: int, width: int) -> tuple[int, int]:
        """Return the shape of W [num_rows, width] in tiles, in elements of `dtype`. width: padded to whole groups."""
        num_bytes = self.head + -(-width // self.group) * self.group_bytes
        return -(-num_rows // TILE), num_bytes // self.dtype.itemsize


def by_type(layouts: Iterable[QuantizedLayout]) -> dict[numba.types.Type, QuantizedLayout]:
    """Return layouts by the type of their elements, as compiled code has it."""
    return {numba.from_dtype(torch.empty(0, dtype=layout.dtype).numpy().dtype): layout for layout in layouts}


EIGHT_BITS = QuantizedLayout(bits=8, dtype=torch.uint8, offset=128, head=4 * TILE, group_head=0)
FOUR_BITS = QuantizedLayout(bits=4, dtype=torch.int16, offset=8, head=0, group_head=2 * TILE)
STORED = {
    "Q8_0": QuantizedLayout(bits=8, dtype=torch.int8, offset=0, head=0, group_head=2 * TILE, group=BLOCK),
    "Q4_0": QuantizedLayout(bits=4, dtype=torch.int64, offset=8, head=0, group_head=2 * TILE, group=BLOCK),
    "Q4_1": QuantizedLayout(bits=4, dtype=torch.uint32, offset=0, head=0, group_head=4 * TILE, group=BLOCK),
}
WIDE = QuantizedLayout(
    bits=8, dtype=torch.uint64, offset=0, head=0, group_head=8 * TILE, group=BLOCK // 2, number_bytes=4
)
OF_FILES = [*STORED.values(), WIDE]
LAYOUTS = by_type([EIGHT_BITS, FOUR_BITS, *OF_FILES])


def rounded_tiles(weight: np.ndarray, layout: QuantizedLayout) -> np.ndarray:
    """Return W [M, K] float32 rounded, and as the product reads it."""
    return tiles_8(*quantize_8(weight)) if layout is EIGHT_BITS else tiles_4(*quantize_4(weight))


def quantize_8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round W [M, K] float32: values [M, K] int8, scales [M] float32. Zeros have a scale of 0."""
    scales = np.abs(weight).max(axis=1) / np.float32(127)
    return np.rint(weight / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8), scales


def quantize_4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round W [M, K] float32, K a multiple of GROUP: values [M, K] int8, scales [M, K / GROUP] float32.

    Each scale is a bfloat16. Zeros have a scale of 0.
    """
    groups = weight.reshape(len(weight), -1, GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[:, :, None], axis=2)
    scales = torch.from_numpy(largest / np.float32(-8)).bfloat16().float().numpy()
    values = np.rint(groups / np.where(scales != 0, scales, 1)).clip(-8, 7).astype(np.int8)
    return values.reshape(weight.shape), scales[:, :, 0]


def tiles_8(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Arrange the result of `quantize_8` as the product reads it: uint8, of EIGHT_BITS.shape, padded with zeros."""
    shape = EIGHT_BITS.shape(*values.shape)
    whole = _padded(values, shape[0], 128)
    vectors = whole.reshape(shape[0], TILE, -1, 4).transpose(0, 2, 1, 3)
    heads = np.zeros(shape[0] * TILE, np.float32)
    heads[: len(scales)] = scales
    return np.hstack([heads.view(np.uint8).reshape(shape[0], -1), vectors.reshape(shape[0], -1)])


def tiles_4(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Arrange the result of `quantize_4` as the product reads it: int16, of FOUR_BITS.shape, padded with zeros."""
    shape = FOUR_BITS.shape(*values.shape)
    whole = _padded(values, shape[0], 8)
    pairs = whole.reshape(shape[0], TILE, -1, GROUP // 8, 2, 4).transpose(4, 0, 2, 3, 1, 5)  # [2, tiles, groups, ...]
    vectors = (pairs[0] | pairs[1] << np.uint8(4)).reshape(shape[0], pairs.shape[2], -1)
    heads = np.zeros((shape[0] * TILE, pairs.shape[2]), np.uint16)
    heads[: len(scales)] = scales.view(np.uint32) >> 16  # a bfloat16 is the upper half of a float32
    of_groups = np.ascontiguousarray(heads.reshape(shape[0], TILE, -1).transpose(0, 2, 1))
    return np.concatenate([of_groups.view(np.uint8), vectors], axis=2).reshape(shape[0], -1).view(np.int16)


def _padded(values: np.ndarray, num_tiles: int, offset: int) -> np.ndarray:
    """Return values + offset as unsigned bytes, in whole tiles and groups."""
    padded = np.full((num_tiles * TILE, -(-values.shape[1] // GROUP) * GROUP), offset, np.uint8)
    padded[: len(values), : values.shape[1]] += values.view(np.uint8)
    return padded


def stored_tiles(raw: np.ndarray, layout: QuantizedLayout) -> np.ndarray:
    """Arrange rows of blocks, uint8 [M, bytes], as the product reads them; rows up to a whole tile are zeros."""
    num_tiles, head = -(-len(raw) // TILE), layout.group_head // TILE
    padded = np.zeros((num_tiles * TILE, raw.shape[1]), np.uint8)
    padded[: len(raw)] = raw
    blocks = padded.reshape(num_tiles, TILE, -1, layout.group_bytes // TILE)
    heads = blocks[..., :head].reshape(*blocks.shape[:3], -1, layout.number_bytes).transpose(0, 2, 3, 1, 4)
    values = blocks[..., head:].transpose(0, 2, 3, 1)
    parts = [part.reshape(num_tiles, blocks.shape[2], -1) for part in (heads, values)]
    tiles = np.concatenate(parts, axis=2).reshape(num_tiles, -1)
    return tiles.view(torch.empty(0, dtype=layout.dtype).numpy().dtype)
