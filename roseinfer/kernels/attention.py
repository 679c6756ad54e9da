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
