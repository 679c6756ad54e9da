"""paged_attention_reference: write, then attend, over a flat batch, in PyTorch. Kernels must compute the same."""

from __future__ import annotations

import torch
from torch import Tensor


def paged_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    out: Tensor | None = None,
    max_query_len: int | None = None,
) -> Tensor:
    """Write K and V of N new tokens into the pool, then let each of them attend over its own sequence; [N, H, D].

    q [N, H, D]; k, v [N, H_kv, D]: the tokens of B sequences one after another. k_cache, v_cache [num_blocks, H_kv,
    block_size, D]: one layer of the pool. slot_mapping [N]: block * block_size + offset at which a token is written.
    query_start [B + 1]: sequence i has the tokens from query_start[i] to query_start[i + 1], at least one.
    context_lens [B]: tokens that sequence i has in the cache after the write. block_tables [B, W]: its blocks in token
    order; what follows them is ignored. A token sees those before it and itself, so whole prompts, chunks of
    them, single new tokens and any mixture of these are one case. out: where to put the result, in q's dtype.
    max_query_len: the most new tokens of a sequence, None where it is not known. A GPU's launches are cut for it; the
    result is the same.

    Sums are fp32. It reads query_start and context_lens on the host, which has to wait for a GPU; kernels do not.
    """
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    blocks, offsets = slot_mapping.long() // block_size, slot_mapping.long() % block_size
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    starts = query_start.tolist()
    for i, length in enumerate(context_lens.tolist()):
        new = slice(starts[i], starts[i + 1])
        table = block_tables[i, : -(-length // block_size)].long()
        # [num_blocks, H_kv, block_size, D] -> [H_kv, 1, length, D]: the query heads of a group share K and V.
        keys, values = (
            cache[table].float().transpose(0, 1).reshape(num_kv_heads, 1, -1, head_dim)[:, :, :length]
            for cache in (k_cache, v_cache)
        )
        queries = q[new].float().unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)  # [H_kv, group, new, D]
        scores = queries @ keys.transpose(-1, -2) * head_dim**-0.5
        position = torch.arange(length, device=q.device)
        future = position > position[length - scores.size(2) :, None]
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        out[new] = (weights @ values).permute(2, 0, 1, 3).flatten(1, 2).to(out.dtype)
    return out
