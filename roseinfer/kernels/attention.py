"""One attention over flat batches, and which kernel computes it on which device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PagedAttention = Callable[..., Tensor]  # with the arguments of paged_attention_reference


def attention_for(device: torch.device, in_one_launch: bool = False) -> PagedAttention:
    """Return the attention for a device: Numba on a CPU, Triton on a GPU, PyTorch elsewhere.

    A GPU's keeps memory from call to call: each owner that runs beside another needs its own. in_one_launch: no
    sequence of a call sees a token in the pool that another one of that call brings; then a GPU saves a launch.
    """
    if device.type == "cpu":
        from .paged_numba import paged_attention_numba

        return paged_attention_numba
    if device.type == "cuda":
        from .paged_triton import TritonAttention

        return TritonAttention(in_one_launch)
    from .paged_reference import paged_attention_reference

    return paged_attention_reference


def has_flash_attention(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether PyTorch has FlashAttention for such heads, also where several share K and V."""
    if device.type != "cuda" or dtype.itemsize != 2 or head_dim > 256:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
