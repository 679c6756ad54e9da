"""Linear layers on a CPU, x [N, K] -> x @ W.T + b [N, M], that differ in how W lies in memory.

    nn.Linear       rows as they were loaded, which a library may rearrange at every call (float16)
    TiledLinear     tiles of 32 rows, each read from end to end (float32 and bfloat16)
    Int8Linear      8 bits per weight and one scale per row: a quarter of the bytes of float32
    Int4Linear      4 bits per weight and one scale per 64 of them
    StoredLinear    the blocks of a GGUF file (Q8_0, Q4_0, Q4_1), or WIDE ones; StoredEmbedding looks up their rows

The products of all but the first take GELU along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from roseinfer.kernels.linear_in_tiles import linear_in_tiles
from roseinfer.kernels.quantized_layout import (
    EIGHT_BITS,
    FOUR_BITS,
    GROUP,
    OF_FILES,
    QuantizedLayout,
    rounded_tiles,
    stored_tiles,
)
from roseinfer.kernels.rows_numba import embedded
from roseinfer.kernels.tiled_numba import TILE, tiles

PIECE = 32 * TILE  # rows of W that are rearranged at a time


def in_tiles(rows: Tensor, shape: Sequence[int], dtype: torch.dtype, as_tiles: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the tiles of W's rows, made a piece at a time, so that no whole copy of W is made on the way.

    shape, dtype: of the result, which has no numbers on the meta device. as_tiles: makes the tiles of some rows.
    """
    if rows.is_meta:
        return torch.empty(shape, dtype=dtype, device=rows.device)
    # NumPy asks the system for pages of 2 MB, as PyTorch does not. A product that reads a large matrix from end to end
    # looks up fewer addresses in them: in float32 and in 8 bits it takes about a tenth less time.
    whole = torch.from_numpy(np.empty(shape, torch.empty(0, dtype=dtype).numpy().dtype))
    for first in range(0, len(rows), PIECE):
        whole[first // TILE : (first + PIECE) // TILE] = as_tiles(rows[first : first + PIECE])
    return whole


class MatrixInTiles(nn.Module):
    """A linear layer with its matrix in tiles that are read from end to end, for any number of rows of x.

    gelu: applied to the result (the tanh form). A row's result does not depend on the other rows of x.

    Args:
        shape: (M, K) of the matrix.
        weight: its tiles, as the product reads them.
        bias: [M] or None.
    """

    def __init__(self, shape: Sequence[int], weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.weight = weight
        self.bias = torch.empty(0) if bias is None else bias.detach().float().clone()
        self.gelu = False

    def forward(self, x: Tensor) -> Tensor:
        return linear_in_tiles(x, self.weight, self.bias, self.out_features, self.gelu)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes


class TiledLinear(MatrixInTiles):
    """A matrix in float32 or bfloat16, the dtype of x: weight [M, K], bias [M] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        like = tiles(weight.to("meta"))
        super().__init__(weight.shape, in_tiles(weight.detach(), like.shape, like.dtype, tiles), bias)


class QuantizedLinear(MatrixInTiles):
    """A matrix in fewer bits; x is quantised to 8 bits, with a scale for each 64 values.

    weight [M, K], bias [M] or None. x of any float dtype; the result has its dtype.
    """

    layout: ClassVar[QuantizedLayout]

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        def rounded(rows: Tensor) -> Tensor:
            return torch.from_numpy(rounded_tiles(rows.float().numpy(), self.layout))

        shape = self.layout.shape(*weight.shape)
        super().__init__(weight.shape, in_tiles(weight.detach(), shape, self.layout.dtype, rounded), bias)


class Int8Linear(QuantizedLinear):
    """A matrix in 8 bits, one scale per row."""

    layout = EIGHT_BITS


class Int4Linear(QuantizedLinear):
    """A matrix in 4 bits, a scale for each 64 values of a row.

    Raises ValueError unless 64 divides K: a group has no part of another row.
    """

    layout = FOUR_BITS

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        check_groups(weight.size(1))
        super().__init__(weight, bias)


def check_groups(width: int) -> None:
    """Raise ValueError for a width of a matrix that has no whole groups."""
    if width % GROUP:
        raise ValueError(f"quantization='int4' needs matrices whose width is a multiple of {GROUP}, got {width}")


class StoredLinear(MatrixInTiles):
    """A matrix in the blocks of a GGUF file, which are not rounded again; sums in float32.

    raw: rows of blocks, uint8 [M, bytes], of a layout in OF_FILES, which their width tells. bias [M] or None. x of any
    float dtype; the result has its dtype.
    """

    def __init__(self, raw: Tensor, in_features: int, bias: Tensor | None) -> None:
        row_bytes = {layout.group_bytes * (in_features // layout.group): layout for layout in OF_FILES}
        layout = row_bytes[TILE * raw.shape[1]]

        def stored(rows: Tensor) -> Tensor:
            return torch.from_numpy(stored_tiles(rows.numpy(), layout))

        shape = layout.shape(len(raw), in_features)
        super().__init__((len(raw), in_features), in_tiles(raw, shape, layout.dtype, stored), bias)


class StoredEmbedding(nn.Module):
    """A table of token embeddings as a GGUF file has it, whose rows become float32 when they are looked up.

    Args:
        weight: [V, width] in float32, float16 or bfloat16, or a StoredLinear's, which both then share.
        vocab_size: V.
        width: of a row.
    """

    def __init__(self, weight: Tensor, vocab_size: int, width: int) -> None:
        super().__init__()
        self.weight, self.vocab_size, self.width = weight, vocab_size, width

    def forward(self, token_ids: Tensor) -> Tensor:
        """Look up rows, [N, width]. Raises IndexError for an id outside the vocabulary, whose row is other memory."""
        if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < self.vocab_size:
            raise IndexError(f"token_ids must be 0 to {self.vocab_size - 1}, got {token_ids.tolist()!r:.100}")
        return embedded(token_ids, self.weight, self.width)
