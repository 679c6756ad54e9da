"""KVPool: K and V of all blocks of an engine, in one memory."""

from __future__ import annotations

import mmap
import sys
from math import prod

import torch
from torch import Tensor

from roseinfer.graphs.upload import uploaded
from roseinfer.models import Model


class KVPool:
    """K and V of all blocks in one memory: [2, L, num_blocks + 1, H_kv, block_size, D], on the model's device.

    It has the model's dtype. It is head-major: what one head keeps in a block is one piece of memory, which a program
    reads from end to end. The last block belongs to no sequence: padding rows write there (`dummy_block`).

    Raises ValueError where the system refuses a CPU's process so much memory.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int) -> None:
        c = model.config
        shape = (2, c.num_layers, num_blocks + 1, c.num_kv_heads, block_size, c.head_dim)
        self.memory = _zeros(shape, model.dtype, model.device)
        self.num_blocks = self.dummy_block = num_blocks
        self.block_size = block_size
        self.layers: list[tuple[Tensor, Tensor]] = [(k, v) for k, v in zip(*self.memory, strict=True)]

    def copy_blocks(self, copies: dict[int, int]) -> None:
        """Copy blocks in all layers, {block: block to copy}. Every block is read before any is written."""
        to, source = uploaded([list(copies), list(copies.values())], self.memory.device)
        self.memory[:, :, to] = self.memory[:, :, source]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. On a CPU no page of them takes memory before something is written there.

    torch.zeros would write them all, and np.zeros asks for pages of 2 MiB: a first token touches two in every layer.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    nbytes = prod(shape) * dtype.itemsize
    try:
        memory = _mapped(nbytes)
    except (OSError, OverflowError) as e:
        raise ValueError(f"num_blocks={shape[2] - 1}: no memory here for a KV pool of {nbytes:,} bytes") from e
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _mapped(nbytes: int) -> mmap.mmap:
    """Return memory of this process that no file has. Raises OSError or OverflowError where there is none."""
    if sys.platform == "win32":  # which has no such flags, and needs none
        return mmap.mmap(-1, nbytes)
    return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
