"""Linear layers on a CPU, x [N, K] -> x @ W.T + b [N, M], that differ in how W lies in memory.

    nn.Linear       rows as they were loaded; a library may rearrange them at every call
    TiledLinear     tiles of 32 rows, each read from end to end (float32 and bfloat16)
    PackedLinear    in oneDNN's own order, rearranged once
    Int8Linear      8 bits per weight and one scale per row: a quarter of the bytes of float32

The products of the last three take GELU along.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roseinfer.kernels.int8_numba import TILE, linear_int8, tiles, tiles_shape
from roseinfer.kernels.onednn import pack, packed_linear
from roseinfer.kernels.tiled_numba import TILE as ROWS_OF_TILE
from roseinfer.kernels.tiled_numba import linear_tiled
from roseinfer.kernels.tiled_numba import tiles as tiles_of

PIECE = 16 * TILE  # rows of W that are quantised at a time, so that no whole copy of it is made on the way
USUAL_ROWS = 16  # of x: a hint to oneDNN. Measured from 1 to 1,024 rows, another hint is hardly ever faster
EXACT_ROWS = 16  # x with more rows is padded


def padded_rows(num_rows: int) -> int:
    """num_rows, above EXACT_ROWS rounded up to one of eight counts for each power of two.

    oneDNN compiles a product for each count of rows that it meets, and keeps about half a megabyte for each: without
    this the memory of a process grows with the variety of its batches. At most one row in nine is padding.
    """
    if num_rows <= EXACT_ROWS:
        return num_rows
    step = 2 ** ((num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


class TiledLinear(nn.Module):
    """A matrix in tiles, for any number of rows of x. weight [M, K], float32 or bfloat16; bias [M] or None. x has the
    weight's dtype. gelu: applied to the result (the tanh form). Whatever other rows x has, a row's result is the same.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = tiles_of(weight.detach())
        self.bias = torch.empty(0) if bias is None else bias.detach().float().clone()
        self.gelu = False

    def forward(self, x: Tensor) -> Tensor:
        return linear_tiled(x, self.weight, self.bias, self.out_features, self.gelu)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes

    @staticmethod
    def bytes_of(num_rows: int, width: int, dtype: torch.dtype, has_bias: bool) -> int:
        """Bytes of a matrix of that shape: padded to whole tiles and pairs, and a bias in float32."""
        width += width % 2 if dtype == torch.bfloat16 else 0
        return -(-num_rows // ROWS_OF_TILE) * ROWS_OF_TILE * width * dtype.itemsize + 4 * num_rows * has_bias


class PackedLinear(nn.Module):
    """A matrix in oneDNN's blocked order, for any number of rows of x (see padded_rows). weight [M, K], bias [M] or
    None.

    gelu: applied to the result, before it is written (the tanh form). Raises RuntimeError where oneDNN does not
    multiply this dtype on this CPU, and AttributeError where torch has no such ops: `packs` tries them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features = weight.size(1)
        self.packed = pack(weight.detach(), USUAL_ROWS)
        self.bias = None if bias is None else bias.detach()
        self.gelu = False

    def forward(self, x: Tensor) -> Tensor:
        num_rows = len(x)
        num_padding = padded_rows(num_rows) - num_rows
        x = F.pad(x, (0, 0, 0, num_padding)) if num_padding else x
        y = packed_linear(x, self.packed, self.bias, self.gelu)
        return y[:num_rows] if num_padding else y

    @property
    def nbytes(self) -> int:
        """Bytes of the values; oneDNN may pad the last of its blocks, and does not say so."""
        return sum(t.numel() * t.element_size() for t in (self.packed, self.bias) if t is not None)


class Int8Linear(nn.Module):
    """A matrix in 8 bits, one scale per row; x is quantised on the way in, a scale for each 64 values.

    weight [M, K], bias [M] or None. x of any float dtype; the result has its dtype. gelu: applied to the result (the
    tanh form). Whatever other rows x has, a row's result is the same.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        num_rows, self.in_features = weight.shape
        scales, layout = np.empty(num_rows, np.float32), np.empty(tiles_shape(*weight.shape), np.uint8)
        for first in range(0, num_rows, PIECE):
            piece = slice(first, min(first + PIECE, num_rows))
            rows = weight[piece].detach().float().numpy()
            scales[piece] = scale = np.abs(rows).max(axis=1) / np.float32(127)
            values = np.rint(rows / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8)
            layout[first // TILE : -(-piece.stop // TILE)] = tiles(values)
        self.weight, self.scales = torch.from_numpy(layout), torch.from_numpy(scales)
        self.bias = torch.zeros(num_rows) if bias is None else bias.detach().float().clone()
        self.gelu = False

    def forward(self, x: Tensor) -> Tensor:
        return linear_int8(x, self.weight, self.scales, self.bias, self.gelu)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.weight, self.scales, self.bias))

    @staticmethod
    def bytes_of(num_rows: int, width: int) -> int:
        """Bytes of a matrix of that shape: one byte per padded value, and per row a scale and a bias in float32."""
        return prod(tiles_shape(num_rows, width)) + 2 * 4 * num_rows
