"""The product with W in tiles, in each layout: rows know nothing of each other, and what follows the product."""

from __future__ import annotations

from functools import cache

import gguf
import pytest
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from roseinfer.kernels.linear_in_tiles import linear_in_tiles
from roseinfer.kernels.quantized_layout import EIGHT_BITS, FOUR_BITS, STORED, rounded_tiles, stored_tiles
from roseinfer.kernels.tiled_numba import tiles

pytestmark = pytest.mark.slow  # each layout is compiled

ROUNDED = {"8 bits": EIGHT_BITS, "4 bits": FOUR_BITS}
NUM_ROWS, WIDTH, NONE = 70, 192, torch.empty(0)
every_layout = pytest.mark.parametrize("name", ["float32", "bfloat16", *ROUNDED, *STORED])


@cache
def matrix(name: str) -> Tensor:
    weight = torch.randn(NUM_ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    if name in ROUNDED:
        return torch.from_numpy(rounded_tiles(weight.numpy(), ROUNDED[name]))
    if name in STORED:
        return torch.from_numpy(stored_tiles(gguf.quants.quantize(weight.numpy(), Kind[name]), STORED[name]))
    return tiles(weight.to(getattr(torch, name)))


def product(name: str, x: Tensor, bias: Tensor = NONE, gelu: bool = False) -> Tensor:
    return linear_in_tiles(x, matrix(name), bias, NUM_ROWS, gelu)


@every_layout
def test_a_row_is_the_same_to_the_bit_in_every_batch(name):
    """On all sides of the numbers of rows that are multiplied at a time, which are at most 32."""
    x = torch.randn(65, WIDTH)
    whole = product(name, x)
    for count in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64):
        assert torch.equal(product(name, x[-count:]), whole[-count:])


@every_layout
def test_gelu_after_the_product_and_its_bias(name):
    """On results from -5 to 5, and on some that are far from there."""
    bias = torch.linspace(-5, 5, NUM_ROWS)
    bias[:4] = torch.tensor([-1e4, -80, 80, 1e4])
    x = torch.randn(5, WIDTH)
    x[1:] = 0
    wanted = F.gelu(product(name, x, bias), approximate="tanh")
    torch.testing.assert_close(product(name, x, bias, gelu=True), wanted, rtol=1e-5, atol=1e-6)


@every_layout
def test_there_may_be_no_bias(name):
    x = torch.randn(3, WIDTH)
    assert torch.equal(product(name, x), product(name, x, torch.zeros(NUM_ROWS)))


@every_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_result_has_the_dtype_of_x_which_may_be_a_cut_and_stays_as_it_is(name, dtype):
    wide = torch.randn(WIDTH, 6).to(dtype)
    x, before = wide.t()[::2], wide.clone()
    out = product(name, x)
    assert out.dtype == dtype and torch.equal(wide, before)
    assert torch.equal(out, product(name, x.float().contiguous()).to(dtype))


@every_layout
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_gives_none_that_is_and_spoils_no_other(name, bad):
    x = torch.randn(33, WIDTH)
    clean = product(name, x)
    x[1, 3] = bad
    result = product(name, x)
    assert not result[1].isfinite().any()
    others = [row for row in range(len(x)) if row != 1]
    assert torch.equal(result[others], clean[others])
