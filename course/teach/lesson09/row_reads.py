"""count_rows: how often the loops of a CPU kernel take each row of the pool, by running them as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..measure.kernel_loads import plain_function

if TYPE_CHECKING:
    from roseinfer.kernels.cases import PagedCase


def count_rows(loop: Callable[..., None], case: PagedCase) -> tuple[Tensor, Tensor]:
    """Count how often loop(out, *case, scale) takes each row of k_cache and of v_cache, [num_blocks, block_size, H_kv].

    loop: a function for Numba to compile, or one that it has compiled. It takes NumPy arrays and indexes the pool as
    [block, slot, head], or as [block, slot, head, d], where each element counts as one part of its row. The loop runs
    in fp32 on a CPU.
    """
    arrays = [tensor.numpy() for tensor in case]
    k_cache, v_cache = (CountedPool(pool) for pool in arrays[3:5])
    out = np.empty_like(arrays[0])
    plain_function(loop)(out, *arrays[:3], k_cache, v_cache, *arrays[5:], np.float32(case.q.size(-1) ** -0.5))
    return k_cache.times, v_cache.times


class CountedPool:
    """An array [num_blocks, block_size, H_kv, D] that counts how often each of its rows is taken."""

    def __init__(self, pool: np.ndarray) -> None:
        self.pool, self.shape = pool, pool.shape
        self._elements = np.zeros(pool.shape, dtype=np.int64)

    def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
        self._elements[index] += 1
        return self.pool[index]

    @property
    def times(self) -> Tensor:
        return torch.from_numpy(self._elements.sum(-1) // self.shape[-1])
