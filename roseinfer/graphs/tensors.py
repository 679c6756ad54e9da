"""Address of a tensor, also of one in a library's own layout, which has no data pointer (oneDNN's packed weights)."""

from __future__ import annotations

import torch
from torch import Tensor


def memory_of(tensor: Tensor) -> int:
    """The same for tensors that share their memory."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def address_of(tensor: Tensor) -> int:
    """Address of the tensor's first value."""
    return tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)
