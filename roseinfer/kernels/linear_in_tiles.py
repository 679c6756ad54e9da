"""x @ W.T on a CPU with W in tiles: float32, pairs of bfloat16, or any layout of quantized_layout.py."""

from __future__ import annotations

import numba
import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.graphs.operation import operation

from . import quantized_numba, stored_numba  # noqa: F401  # both add their products
from .numba_calls import compiled, run_parallel
from .quantized_layout import LAYOUTS
from .tiled_numba import GELU, STORE, factor, multiply_tiled

PAIR = 2  # values of K


@operation
def linear_in_tiles(x: Tensor, weight: Tensor, bias: Tensor, num_rows: int, gelu: bool = False) -> Tensor:
    """Return x [N, K] @ W.T + bias, in x's dtype.

    weight: `tiles`, `rounded_tiles` or `stored_tiles` of W [num_rows, K]. bias: float32, [num_rows], or [0] for none.
    gelu: applied to the result (the tanh form).
    """
    out = torch.empty(len(x), num_rows)
    w = weight.numpy()
    layout = LAYOUTS.get(numba.from_dtype(w.dtype))
    rows = F.pad(x.float(), (0, -x.size(1) % (layout.group if layout else PAIR))).contiguous()
    run_parallel(multiply, out.numpy(), rows.numpy(), w, bias.numpy(), GELU if gelu else STORE)
    return out.to(x.dtype)


@compiled()
def multiply(out, x, w, bias, then):
    """Run multiply_tiled on x [N, K] float32 in whole groups."""
    multiply_tiled(out, factor(x, w), w, bias, then)
