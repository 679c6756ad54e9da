"""uploaded: values of the host become a tensor on a device, and the host goes on meanwhile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .operation import operation


@operation
def uploaded(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return values of the host as a tensor on a device, without waiting for the device.

    A GPU copies in the order of its work, and from pinned memory alone while the host goes on: from other memory, as
    for torch.tensor(values, device=...) or an index by a list, the host waits until all that was launched is done.

    values: numbers, lists of them or a NumPy array. dtype: None for what torch.tensor makes of them.
    """
    on_host = torch.tensor(values, dtype=dtype)
    if device.type == "cuda":
        on_host = on_host.pin_memory()
    return on_host.to(device, non_blocking=True)
