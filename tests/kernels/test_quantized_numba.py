"""Linear layers in 8 and 4 bits against the same arithmetic in numpy, in float64."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from roseinfer.kernels.linear_in_tiles import linear_in_tiles
from roseinfer.kernels.quantized_layout import (
    EIGHT_BITS,
    FOUR_BITS,
    GROUP,
    quantize_4,
    quantize_8,
    tiles_4,
    tiles_8,
)
from roseinfer.kernels.tiled_numba import ROWS, TILE

pytestmark = pytest.mark.slow

BITS = [8, 4]
TILES = {8: tiles_8, 4: tiles_4}
# (rows of W, width): whole tiles, and not; in 8 bits a width that has no whole groups, too
SHAPES = {8: [(1, 1), (3, 5), (17, 64), (50, 130), (64, 65), (130, 192)], 4: [(1, 64), (17, 128), (50, 192), (64, 64)]}
NUM_ROWS = [1, 2, ROWS - 1, ROWS, ROWS + 1, 15, 16, 65]  # of x: up to ROWS are multiplied at a time


def rounded(x: np.ndarray) -> np.ndarray:
    """x [N, K] as 8 bits and a scale for each group of a row leave it, in float64."""
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    values = np.rint(groups * inverse).astype(np.float64) * (largest / np.float32(127))
    return values.reshape(len(x), -1)[:, : x.shape[1]]


def exact(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """W that was rounded to values with those scales, in float64."""
    of_values = scales[:, None] if scales.ndim == 1 else np.repeat(scales, GROUP, axis=1)
    return values * of_values.astype(np.float64)


def drawn(bits: int, shape: tuple[int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """values, scales and a bias; scales are positive and negative, as 4 bits have them."""
    rng = np.random.default_rng(seed)
    num_rows, width = shape
    if bits == 8:
        values, scales = rng.integers(-127, 128, shape), rng.random(num_rows, np.float32)
    else:
        values, scales = rng.integers(-8, 8, shape), 10 * rng.standard_normal((num_rows, width // GROUP), np.float32)
        scales = torch.from_numpy(scales).bfloat16().float().numpy()
    return values.astype(np.int8), scales, rng.standard_normal(num_rows, np.float32)


def run(x: np.ndarray, values: np.ndarray, scales: np.ndarray, bias: np.ndarray) -> np.ndarray:
    weight = TILES[8 if scales.ndim == 1 else 4](values, scales)
    return linear_in_tiles(*map(torch.from_numpy, (x, weight, bias)), len(values)).numpy()


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max() + 1e-3)


@pytest.mark.parametrize(("bits", "shape"), [(bits, shape) for bits in BITS for shape in SHAPES[bits]], ids=str)
def test_every_shape_and_number_of_rows(bits, shape):
    values, scales, bias = drawn(bits, shape)
    for count in NUM_ROWS:
        x = np.random.default_rng(count).standard_normal((count, shape[1]), np.float32)
        assert_close(run(x, values, scales, bias), rounded(x) @ exact(values, scales).T + bias)


@pytest.mark.parametrize(("bits", "checksum"), [(8, 1048026233), (4, 3842803349)], ids=["8", "4"])
def test_results_are_the_same_to_the_bit_on_every_processor(bits, checksum):
    """There are four ways to sum four products of bytes; test_other_processors.py runs this with the others."""
    x = np.random.default_rng(3).standard_normal((7, 192), np.float32)
    assert crc32(run(x, *drawn(bits, (50, 192)))) == checksum


def test_the_largest_values_do_not_overflow():
    """255 x 127, four times in a lane: what 16-bit sums, as older instructions have them, would cut off."""
    x = np.ones((1, 4_096), np.float32)
    values = np.full((4, 4_096), 127, np.int8)
    values[1] = -127
    ones, none = np.ones(4, np.float32), np.zeros(4, np.float32)
    np.testing.assert_allclose(run(x, values, ones, none)[0] / 4_096, [127, -127, 127, 127], rtol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_a_large_value_spoils_its_own_group_alone(bits):
    """What a scale for the whole row would do: the others round to 0."""
    x = np.full((1, 256), 0.01, np.float32)
    x[0, 70] = 100
    scales = np.ones(1, np.float32) if bits == 8 else np.ones((1, 4), np.float32)
    out = run(x, np.ones((1, 256), np.int8), scales, np.zeros(1, np.float32))
    np.testing.assert_allclose(out, 100 + 192 * 0.01, rtol=1e-4)


@pytest.mark.parametrize("bits", BITS)
def test_a_row_of_zeros_gives_the_bias(bits):
    values, scales, bias = drawn(bits, (6, 128))
    assert (run(np.zeros((1, 128), np.float32), values, scales, bias)[0] == bias).all()


@pytest.mark.parametrize("bits", BITS)
def test_values_too_small_to_scale_are_zeros(bits):
    """127 / the largest of them would be infinite."""
    values, scales, bias = drawn(bits, (6, 64))
    for value in (1e-45, 1e-38):
        assert (run(np.full((1, 64), value, np.float32), values, scales, bias)[0] == bias).all()


def test_where_a_value_of_8_bits_lies():
    values, scales, _ = drawn(8, (130, 65))
    layout = tiles_8(values, scales)
    assert layout.shape == EIGHT_BITS.shape(130, 65) == (5, 4 * TILE + 128 * TILE) and layout.dtype == np.uint8
    for m, k in ((0, 0), (1, 3), (31, 4), (64, 64), (129, 7)):
        tile, row = divmod(m, TILE)
        assert layout[tile, 4 * TILE + k // 4 * 4 * TILE + 4 * row + k % 4] == int(values[m, k]) + 128
        assert layout[tile, 4 * row : 4 * row + 4].view(np.float32) == scales[m]


def test_where_a_value_of_4_bits_lies():
    values, scales, _ = drawn(4, (70, 128))
    words = TILE + GROUP * TILE // 4  # of a group
    layout = tiles_4(values, scales)
    assert layout.shape == FOUR_BITS.shape(70, 128) == (3, 2 * words) and layout.dtype == np.int16
    for m, k in ((0, 0), (1, 3), (31, 4), (32, 63), (64, 64), (69, 127)):
        (tile, row), (group, of_group) = divmod(m, TILE), divmod(k, GROUP)
        begin = layout[tile, group * words : (group + 1) * words].copy()
        assert (begin.view(np.uint16)[row].astype(np.uint32) << 16).view(np.float32) == scales[m, group]
        byte = begin.view(np.uint8)[2 * TILE + of_group // 8 * 4 * TILE + 4 * row + of_group % 4]
        assert (byte >> 4 if of_group % 8 > 3 else byte & 15) == int(values[m, k]) + 8


WEIGHTS = hnp.arrays(np.float32, (2, 2 * GROUP), elements=st.floats(-100, 100, width=32))


@settings(max_examples=50, deadline=None)
@given(WEIGHTS)
def test_rounding_errs_by_half_a_step_at_most(weight):
    """In 4 bits the largest values of the other sign lie up to a step beyond 7, the last whole number."""
    values, scales = quantize_8(weight)
    assert (np.abs(exact(values, scales) - weight) <= 0.5001 * scales[:, None] + 1e-30).all()
    values, scales = quantize_4(weight)
    steps = np.repeat(np.abs(scales), GROUP, axis=1)
    beyond = np.where(values == 7, 1.05, 0.55) * steps  # a bfloat16 scale is off by 1 in 256 of 8 steps
    assert (np.abs(exact(values, scales) - weight) <= beyond + 1e-30).all()
    assert ((values >= -8) & (values <= 7)).all() and (values[np.repeat(scales, GROUP, axis=1) == 0] == 0).all()
