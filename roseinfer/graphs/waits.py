"""Operations in which the host waits for the device: for a value, or for the size of a result that depends on values.

While a CUDA graph is captured the device computes nothing, so there is nothing to wait for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .operation import name_of

WAITS = {
    "aten::_local_scalar_dense": "the host waits for a value (item, int, bool, tolist or an if)",
    "aten::equal": "the host waits for a value (torch.equal)",
    "aten::nonzero": "the size of the result depends on values (nonzero)",
    "aten::masked_select": "the size of the result depends on values (masked_select)",
    "aten::unique_dim": "the size of the result depends on values (unique)",
    "aten::_unique2": "the size of the result depends on values (unique)",
}


def why_it_waits(func: Any, args: tuple[Any, ...]) -> str | None:
    """func: as an OperationMode gets it, with its arguments. None where nobody waits."""
    name = name_of(func)
    if name == "aten::index" and any(isinstance(x, Tensor) and x.dtype == torch.bool for x in tree_leaves(args[1:])):
        return "the size of the result depends on values (an index by a mask)"
    return WAITS.get(name)
