"""Products with the blocks of a GGUF file: those of the dequantised matrix."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from roseinfer.kernels.linear_in_tiles import linear_in_tiles
from roseinfer.kernels.quantized_layout import STORED, WIDE, stored_tiles
from roseinfer.kernels.rows_numba import embedded
from roseinfer.models.gguf_wide import in_wide_blocks

pytestmark = pytest.mark.slow  # each kind is compiled
LAYOUTS = {**STORED, "Q5_1": WIDE}


def drawn(kind, num_rows, width):
    """(W as the product reads it, W dequantised), with a block of zeros and one of large values."""
    weight = np.random.default_rng(0).standard_normal((num_rows, width), dtype=np.float32)
    weight[0, :32], weight[-1, -32:] = 0, weight[-1, -32:] * 1e4
    raw = gguf.quants.quantize(weight, Kind[kind])
    rows = raw if kind in STORED else in_wide_blocks(torch.from_numpy(raw), kind).numpy()
    tiles = torch.from_numpy(stored_tiles(rows, LAYOUTS[kind]))
    assert tuple(tiles.shape) == LAYOUTS[kind].shape(num_rows, width) and tiles.dtype == LAYOUTS[kind].dtype
    return tiles, torch.from_numpy(gguf.quants.dequantize(raw, Kind[kind]))


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("num_rows", "width"), [(100, 96), (32, 32), (1, 64), (33, 1536)])
def test_a_product_is_that_of_the_dequantised_matrix(kind, num_rows, width):
    tiles, dequantised = drawn(kind, num_rows, width)
    bias = torch.randn(num_rows)
    for count in (1, 2, 7, 8, 9, 20):
        x = torch.randn(count, width)
        exact = x.double() @ dequantised.double().T
        # As many roundings as float32 makes itself: each product and sum once.
        allowed = 1e-6 * (x.double().abs() @ dequantised.double().abs().T) + 1e-6
        got = linear_in_tiles(x, tiles, bias, num_rows).double()
        assert ((got - (exact + bias)).abs() <= 2 * allowed + 1e-5).all()


@pytest.mark.parametrize("kind", LAYOUTS)
def test_rows_are_those_of_the_dequantised_table(kind):
    tiles, dequantised = drawn(kind, 100, 96)
    ids = torch.tensor([0, 99, 31, 32, 64, 32])
    assert torch.equal(embedded(ids, tiles, 96), dequantised[ids])


def test_rows_of_numbers_become_float32():
    table = torch.randn(40, 24)
    ids = torch.tensor([0, 39, 3])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert torch.equal(embedded(ids, table.to(dtype), 24), table.to(dtype)[ids].float())


HALVES = np.array([np.inf, -np.inf, np.nan, 2.0**-24, -0.0, 65504, 1], np.float16)


@pytest.mark.parametrize("kind", STORED)
def test_rows_with_a_scale_that_is_not_finite_are_not_finite(kind):
    """A token with such a row then ends in an error, and not in other words."""
    raw = gguf.quants.quantize(np.random.default_rng(0).standard_normal((len(HALVES), 96), np.float32), Kind[kind])
    raw[:, :2] = HALVES.view(np.uint8).reshape(-1, 2)
    rows = embedded(torch.arange(len(HALVES)), torch.from_numpy(stored_tiles(raw, STORED[kind])), 96)
    with np.errstate(invalid="ignore"):  # infinity * 0
        wanted = torch.from_numpy(gguf.quants.dequantize(raw, Kind[kind]))
    torch.testing.assert_close(rows, wanted, rtol=0, atol=0, equal_nan=True)


def test_numbers_that_are_not_finite_stay_so():
    table = torch.from_numpy(HALVES)[:, None].expand(-1, 24).contiguous()
    torch.testing.assert_close(
        embedded(torch.arange(len(table)), table, 24), table.float(), rtol=0, atol=0, equal_nan=True
    )
