"""Products in float32 and bfloat16: every value at its place, every shape, and no registers of AMX."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from roseinfer.kernels import amx_numba, tiled_numba
from roseinfer.kernels.linear_in_tiles import linear_in_tiles
from roseinfer.kernels.tiled_numba import TILE, tiles

# Rows of x that are multiplied at a time.
ROWS = {torch.float32: tiled_numba.ROWS, torch.bfloat16: amx_numba.ROWS if amx_numba.HAS_AMX else tiled_numba.ROWS}
DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(32, 2), (1, 6), (33, 64), (70, 600), (96, 1024)]  # [M, K]: whole and broken tiles, below and above DEPTH


def layer(num_rows, depth, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_rows, depth, generator=generator).to(dtype)
    return weight, torch.randn(num_rows, generator=generator)


def product(x, weight, bias):
    return linear_in_tiles(x, tiles(weight), bias, len(weight))


@pytest.mark.parametrize("depth", [4, 5])
def test_every_value_of_float32_is_found_at_its_place(depth):
    weight = torch.arange(1.0, 40 * depth + 1).view(40, depth)
    tiled = tiles(weight)
    assert tiled.shape == (2, depth, TILE)
    for m in range(2 * TILE):
        row = weight[m] if m < 40 else torch.zeros(depth)
        assert torch.equal(tiled[m // TILE, :, m % TILE], row)


@pytest.mark.parametrize("depth", [4, 5])
def test_every_value_of_bfloat16_is_found_in_its_pair(depth):
    weight = torch.arange(1.0, 40 * depth + 1).view(40, depth).bfloat16()
    tiled = tiles(weight)
    assert tiled.shape == (2, (depth + 1) // 2, TILE)
    pairs = tiled.view(torch.bfloat16).view(2, (depth + 1) // 2, TILE, 2)
    for m in range(2 * TILE):
        row = F.pad(weight[m], (0, depth % 2)) if m < 40 else torch.zeros(depth + depth % 2, dtype=torch.bfloat16)
        assert torch.equal(pairs[m // TILE, :, m % TILE].flatten(), row)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "depth"), SHAPES)
def test_it_is_the_product(num_rows, depth, dtype):
    weight, bias = layer(num_rows, depth, dtype)
    for count in range(1, 2 * ROWS[dtype] + 2):
        x = torch.randn(count, depth).to(dtype)
        wanted = F.linear(x.double(), weight.double(), bias.double())
        result = product(x, weight, bias)
        assert result.dtype == dtype and result.shape == (count, num_rows)
        close = {torch.float32: 1e-4, torch.bfloat16: 0.02}[dtype]
        torch.testing.assert_close(result.double(), wanted, rtol=close, atol=close * depth**0.5)


@pytest.mark.slow
@pytest.mark.skipif(not amx_numba.HAS_AMX, reason="this CPU has no AMX")
def test_a_process_that_gets_no_registers_does_not_load_code_that_uses_them(tmp_path):
    """As where a host program's signal stack is too small for them."""
    code = (
        "import torch; {}from roseinfer.kernels import amx_numba; from roseinfer.kernels.tiled_numba import tiles\n"
        "from roseinfer.kernels.linear_in_tiles import linear_in_tiles\n"
        "x = torch.ones(3, 64).bfloat16()\n"
        "assert linear_in_tiles(x, tiles(x), torch.empty(0), 3).eq(64).all()\n"
        "print(amx_numba.HAS_AMX)"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code.format(first)],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for first in ("", "torch.cpu._init_amx = lambda: False; ", "")
    ]
    assert said == ["True\n", "False\n", "True\n"]
