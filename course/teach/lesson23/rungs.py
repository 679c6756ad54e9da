"""The kernels of 23.2 and 23.3: the launch that a case makes, and what it must give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..lessona3.rungs import Rung, matrix, power_of_two, unwritten, values, weights
from ..lessona3.watch import Launch

ROWS, COLUMNS, CHUNK = 16, 32, 64  # different ones, so that none stands for another; 16 is tl.dot's least on a GPU


def tiles(num_rows: int, width: int) -> dict[str, int]:
    return {"WIDTH": width, "ROWS": max(ROWS, power_of_two(num_rows)), "COLUMNS": COLUMNS, "CHUNK": CHUNK}


def few_rows(num_rows: int, num_out: int, width: int) -> Launch:
    arguments = {
        "out": unwritten(num_rows, num_out),
        "x": matrix(num_rows, width),
        "weight": weights(num_out, width, "contiguous"),
        "bias": values(num_out, seed=num_out + 1000),
        "num_rows": num_rows,
        "num_out": num_out,
    }
    return Launch(arguments, -(-num_out // COLUMNS), tiles(num_rows, width))


def norm_in_front(num_rows: int, num_out: int, width: int, eps: float) -> Launch:
    """Launch a product of rows of different lengths, so that a norm is seen, with a norm's weights about 1."""
    lengths = torch.arange(1, num_rows + 1)[:, None]
    arguments = {
        "out": unwritten(num_rows, num_out),
        "x": matrix(num_rows, width) * lengths,
        "norm": 1 + values(width, seed=width + 2000) / 2,
        "weight": weights(num_out, width, "contiguous"),
        "num_rows": num_rows,
        "num_out": num_out,
        "eps": eps,
    }
    return Launch(arguments, -(-num_out // COLUMNS), tiles(num_rows, width))


def product(x: Tensor, weight: Tensor, bias: Tensor, **_: Any) -> Tensor:
    return (x.double() @ weight.double().T + bias.double()).float()


def normed_product(x: Tensor, norm: Tensor, weight: Tensor, eps: float, **_: Any) -> Tensor:
    """Compute RMSNorm(x) @ weight.T in double precision."""
    x = x.double()
    normed = x / (x.square().mean(1, keepdim=True) + eps).sqrt() * norm.double()
    return (normed @ weight.double().T).float()


FEW_ROWS = Rung("23.2", "a product for a few rows", few_rows, (3, 40, 100), product)
NORM_IN_FRONT = Rung("23.3", "the norm in front", norm_in_front, (3, 40, 100, 0.5), normed_product)
