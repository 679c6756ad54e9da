"""Operations in which the host waits for the device: for a value, or for a result whose size depends on values.

While a CUDA graph is captured the device computes nothing, so there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .operation import is_inside_operation, name_of

HOST_WAITS = {
    "aten::_local_scalar_dense": "the host waits for a value (item, int, bool, tolist or an if)",
    "aten::item": "the host waits for a value (item, int, bool or float)",  # under inference_mode it is seen whole
    "aten::is_nonzero": "the host waits for a value (an if)",
    "aten::equal": "the host waits for a value (torch.equal)",
    "aten::allclose": "the host waits for a value (torch.allclose)",
    "aten::nonzero": "the size of the result depends on values (nonzero)",
    "aten::argwhere": "the size of the result depends on values (argwhere)",
    "aten::masked_select": "the size of the result depends on values (masked_select)",
    "aten::unique_dim": "the size of the result depends on values (unique)",
    "aten::_unique2": "the size of the result depends on values (unique)",
    "aten::unique_consecutive": "the size of the result depends on values (unique_consecutive)",
}


class BelowDispatch(TorchFunctionMode):
    """Calls `found` with what a step does that no dispatcher sees where tensors lie in the host's memory."""

    def __init__(self, found: Callable[[str], None]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if is_inside_operation():
            return func(*args, **(kwargs or {}))
        if func is Tensor.tolist:
            self.found("wait for the device, tolist: the host waits for values")
        if func in (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__):
            self.found("work on tensors through NumPy, unless in an operation")
        return func(*args, **(kwargs or {}))


def why_host_waits(func: Any, args: tuple[Any, ...]) -> str | None:
    """Return why the host waits in an operation, None where it does not. func: as an OperationMode gets it."""
    name = name_of(func)
    masks = [x for x in tree_leaves(args[1:2]) if isinstance(x, Tensor) and x.dtype == torch.bool]
    if name == "aten::index_put_" and masks and args[2].numel() > 1:  # one value needs no size: it fills under the mask
        return "the number of values depends on values (an index by a mask)"
    if name == "aten::index" and masks:
        return "the size of the result depends on values (an index by a mask)"
    return HOST_WAITS.get(name)
