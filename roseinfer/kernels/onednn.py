"""oneDNN's products with a matrix in its own order, by torch.compile's private operations, called only from here.

The engine's own products are faster; these show what a library reaches. Stage 12 shows the same calls, because they are
its one change.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(weight: Tensor, num_rows: int) -> Tensor:
    """Return weight [M, K] in the order that oneDNN multiplies fastest by num_rows rows.

    Raises RuntimeError where oneDNN does not multiply this dtype on this CPU, AttributeError where torch has no such
    operation.
    """
    return torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [N, K] @ W.T + bias, [N, M]."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@cache
def packs(dtype: torch.dtype) -> bool:
    """Whether both operations work here in that dtype, tried on a small product."""
    x, weight, bias = torch.ones(2, 64, dtype=dtype), torch.eye(32, 64, dtype=dtype), torch.ones(32, dtype=dtype)
    try:
        out = packed_linear(x, pack(weight, len(x)), bias)
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(out, F.linear(x, weight, bias))
