"""A linear layer in 8 bits against the same arithmetic in numpy, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from other_processors import run_as

from roseinfer.kernels.int8_numba import STEP, TILE, linear_int8, tiles

pytestmark = pytest.mark.slow


SHAPES = [(1, 1), (3, 5), (17, 64), (50, 130), (64, 65), (130, 192)]  # (rows of W, width): whole tiles, and not
NUM_ROWS = [1, 2, 3, 4, 5, 15, 16, 63, 64, 65, 130]  # of x: 4 are multiplied at a time, a block has 64
PROCESSORS = {  # what Numba is told to compile for: each of the three ways to sum four products
    "avx512vnni": None,
    "avxvnni": ("alderlake", "+avx2,+fma,+avxvnni"),
    "multiplications": ("generic", ""),
}


def rounded(x: np.ndarray) -> np.ndarray:
    """x [N, K] as 8 bits and a scale for each 64 values of a row leave it, in float64."""
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % STEP))).reshape(len(x), -1, STEP)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    values = np.rint(groups * inverse).astype(np.float64) * (largest / np.float32(127))
    return values.reshape(len(x), -1)[:, : x.shape[1]]


def expected(x: np.ndarray, weight: np.ndarray, scales: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return rounded(x) @ weight.T.astype(np.float64) * scales + bias


def drawn(num_rows: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    weight = rng.integers(-127, 128, (num_rows, width)).astype(np.int8)
    return weight, rng.random(num_rows, np.float32), rng.standard_normal(num_rows, np.float32)


def run(x: np.ndarray, weight: np.ndarray, scales: np.ndarray, bias: np.ndarray, gelu: bool = False) -> np.ndarray:
    return linear_int8(*map(torch.from_numpy, (x, tiles(weight), scales, bias)), gelu).numpy()


CLOSE = {"rtol": 1e-5, "atol": 2e-3}  # results are of the order of 1,000


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_and_number_of_rows(shape):
    weight, scales, bias = drawn(*shape)
    for count in NUM_ROWS:
        x = np.random.default_rng(count).standard_normal((count, shape[1]), np.float32)
        out = run(x, weight, scales, bias)
        np.testing.assert_allclose(out, expected(x, weight, scales, bias), **CLOSE)


def test_the_largest_values_do_not_overflow():
    """255 x 127, four times in a lane: what 16-bit sums, as older instructions have them, would cut off."""
    x = np.ones((1, 4_096), np.float32)
    weight = np.full((4, 4_096), 127, np.int8)
    weight[1] = -127
    ones, none = np.ones(4, np.float32), np.zeros(4, np.float32)
    np.testing.assert_allclose(run(x, weight, ones, none)[0] / 4_096, [127, -127, 127, 127], rtol=1e-6)


def test_a_large_value_spoils_its_own_64_alone():
    """What a scale for the whole row would do: the others round to 0."""
    x = np.full((1, 256), 0.01, np.float32)
    x[0, 70] = 100
    weight, one, none = np.ones((1, 256), np.int8), np.ones(1, np.float32), np.zeros(1, np.float32)
    np.testing.assert_allclose(run(x, weight, one, none), 100 + 192 * 0.01, rtol=1e-4)


def test_a_row_is_the_same_whatever_is_beside_it():
    """To the bit: tiles of one row and of four add up in the same order."""
    weight, scales, bias = drawn(50, 192)
    x = np.random.default_rng(1).standard_normal((70, 192), np.float32)
    together = run(x, weight, scales, bias)
    for row in (0, 3, 64, 69):
        assert (run(x[row : row + 1], weight, scales, bias) == together[row]).all()


def test_a_row_of_zeros_and_rows_that_are_not_finite():
    weight, scales, bias = drawn(6, 70)
    x = np.random.default_rng(2).standard_normal((6, 70), np.float32)
    x[0], x[2, 5], x[4, 69] = 0, np.nan, np.inf
    out = run(x, weight, scales, bias)
    assert (out[0] == bias).all()
    assert np.isnan(out[[2, 4]]).all(), "what is not a number must not come out as one"
    rest = x[[1, 3, 5]]
    np.testing.assert_allclose(out[[1, 3, 5]], expected(rest, weight, scales, bias), **CLOSE)


def test_values_too_small_to_scale_are_zeros():
    """127 / the largest of them would be infinite."""
    weight, scales, bias = drawn(6, 64)
    for value in (1e-45, 1e-38):
        assert (run(np.full((1, 64), value, np.float32), weight, scales, bias)[0] == bias).all()


def test_gelu_after_the_product():
    """On results from -5 to 5, and on some that are far from there."""
    weight, scales, bias = drawn(200, 64)
    bias = np.linspace(-5, 5, 200, dtype=np.float32)
    bias[:4] = -1e4, -80, 80, 1e4
    x = np.random.default_rng(4).standard_normal((5, 64), np.float32)
    x[1:] = 0
    plain = torch.from_numpy(run(x, weight, scales, bias))
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(
        torch.from_numpy(run(x, weight, scales, bias, gelu=True)), F.gelu(plain, approximate="tanh"), **close
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_result_has_the_dtype_of_x_which_stays_as_it_is(dtype):
    weight, scales, bias = drawn(6, 70)
    x = torch.randn(3, 140).to(dtype)[:, ::2]
    before = x.clone()
    out = linear_int8(x, *map(torch.from_numpy, (tiles(weight), scales, bias)))
    assert out.dtype == dtype and torch.equal(x, before)
    assert torch.equal(out, torch.from_numpy(run(x.float().contiguous().numpy(), weight, scales, bias)).to(dtype))


def test_where_a_value_of_w_lies():
    weight, *_ = drawn(130, 65)
    layout = tiles(weight)
    assert layout.shape == (3, 32, 256) and layout.dtype == np.uint8
    for m, k in ((0, 0), (1, 3), (63, 4), (64, 64), (129, 7)):
        assert layout[m // TILE, k // 4, m % TILE * 4 + k % 4] == int(weight[m, k]) + 128
    assert (layout[2, :, 4 * (130 - 2 * TILE) :] == 128).all() and (layout[:, 17:] == 128).all()


@pytest.mark.parametrize("processor", [name for name, told in PROCESSORS.items() if told])
def test_other_processors_give_the_same_bits(processor, tmp_path):
    name, features = PROCESSORS[processor]
    weight, scales, bias = drawn(50, 130)
    x = np.random.default_rng(3).standard_normal((7, 130), np.float32)
    np.savez(tmp_path / "in.npz", x=x, weight=weight, scales=scales, bias=bias)
    code = (
        "import numpy as np; from tests.kernels.test_int8_numba import run\n"
        f"out = run(**np.load({str(tmp_path / 'in.npz')!r})); np.save({str(tmp_path / 'out.npy')!r}, out)"
    )
    run_as(processor, name, features, code, tmp_path)
    assert (np.load(tmp_path / "out.npy") == run(x, weight, scales, bias)).all()
