"""paged_case: arguments of an attention over block tables, made so that a wrong read cannot go unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class PagedCase(NamedTuple):
    """The arguments of paged_attention_reference, in its order; `attention(*case)` calls it.

    q [B, H, D]; k, v [B, H_kv, D]; k_cache, v_cache [num_blocks, block_size, H_kv, D]; block_table [B, max_blocks]
    and context_lens [B], int32.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    context_lens: Tensor

    @property
    def cached(self) -> Tensor:
        """Mask of the values of k_cache and v_cache that belong to a cached token: all that are not NaN."""
        return ~self.k_cache.isnan()


def paged_case(
    context_lens: Sequence[int],
    *,
    num_kv_heads: int = 2,
    group: int = 1,
    head_dim: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> PagedCase:
    """Return a seeded batch with context_lens[i] cached tokens in sequence i, and `group` query heads on each KV head.

    Blocks lie in random order all over the pool. Every slot that holds no token is NaN, and so is block 0, which the
    table names after a sequence's last block. q, k and v are cuts of one tensor, as a model makes them.
    """
    generator = torch.Generator().manual_seed(seed)
    used = [-(-n // block_size) for n in context_lens]
    unused = (1 + torch.randperm(sum(used), generator=generator)).tolist()
    cache = torch.full((2, 1 + sum(used), block_size, num_kv_heads, head_dim), float("nan"))
    table = torch.zeros(len(context_lens), max(used) + 1, dtype=torch.int32)
    for row, num_tokens in enumerate(context_lens):
        for index in range(used[row]):
            block, filled = unused.pop(), min(block_size, num_tokens - index * block_size)
            table[row, index] = block
            cache[:, block, :filled] = torch.randn(2, filled, num_kv_heads, head_dim, generator=generator)
    qkv = torch.randn(len(context_lens), (group + 2) * num_kv_heads, head_dim, generator=generator)
    q, k, v = qkv.to(device, dtype).split([group * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
    k_cache, v_cache = cache.to(device, dtype)
    lens = torch.tensor(context_lens, dtype=torch.int32, device=device)
    return PagedCase(q, k, v, k_cache, v_cache, table.to(device), lens)
