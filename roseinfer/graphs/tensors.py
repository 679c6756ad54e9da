"""Address of a tensor, also where it has no data pointer: oneDNN's packed weights, in the library's own layout."""

from __future__ import annotations

import torch
from torch import Tensor


def memory_of(tensor: Tensor) -> int:
    """Return a number that is equal for tensors that share their memory."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def address_of(tensor: Tensor) -> int:
    """Return the address of the tensor's first value."""
    return tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)
