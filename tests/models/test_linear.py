"""The layouts of a matrix on a CPU: made piece by piece, and the same as if made at once."""

from __future__ import annotations

import gguf
import pytest
import torch

from roseinfer.kernels.quantized_layout import EIGHT_BITS, FOUR_BITS, STORED, rounded_tiles, stored_tiles
from roseinfer.kernels.tiled_numba import tiles
from roseinfer.models import linear
from roseinfer.models.linear import PIECE, Int4Linear, Int8Linear, StoredLinear, TiledLinear

WIDTH = 64
ROWS = torch.randn(2 * PIECE + 37, WIDTH, generator=torch.Generator().manual_seed(0))
BLOCKS = gguf.quants.quantize(ROWS.numpy(), gguf.GGMLQuantizationType.Q4_1)
LAYOUTS = {
    "float32": (TiledLinear(ROWS, None), tiles(ROWS)),
    "bfloat16": (TiledLinear(ROWS.bfloat16(), None), tiles(ROWS.bfloat16())),
    "8 bits": (Int8Linear(ROWS, None), torch.from_numpy(rounded_tiles(ROWS.numpy(), EIGHT_BITS))),
    "4 bits": (Int4Linear(ROWS, None), torch.from_numpy(rounded_tiles(ROWS.numpy(), FOUR_BITS))),
    "Q4_1": (
        StoredLinear(torch.from_numpy(BLOCKS), WIDTH, None),
        torch.from_numpy(stored_tiles(BLOCKS, STORED["Q4_1"])),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_pieces_of_a_matrix_are_the_matrix(name):
    made, wanted = LAYOUTS[name]
    assert torch.equal(made.weight.view(torch.uint8), wanted.view(torch.uint8))


def test_no_whole_copy_of_a_matrix_is_made(monkeypatch):
    taken = []

    def noted(rows):
        taken.append((rows.is_meta, len(rows)))
        return tiles(rows)

    monkeypatch.setattr(linear, "tiles", noted)
    TiledLinear(ROWS, None)
    assert taken == [(True, len(ROWS)), (False, PIECE), (False, PIECE), (False, 37)]
