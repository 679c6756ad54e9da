"""Attention where the last sequences of a batch see no token but their new ones: PyTorch's is faster for long ones."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .attention import PagedAttention
from .paged_triton import store

# Not cuDNN, which makes a plan for every length that it has not met: a prompt would wait for that.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attention_with_whole_prompts(
    attention: PagedAttention, lengths: tuple[int, ...], q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor,
    v_cache: Tensor, slot_mapping: Tensor, query_start: Tensor, context_lens: Tensor, block_tables: Tensor, out: Tensor,
) -> Tensor:  # fmt: skip
    """Return the attention [N, H, D] of N new tokens in `out`, and write their K and V to the pool.

    attention: computes the sequences before the whole prompts. lengths: new tokens of each of the last sequences, which
    have no other tokens. The other arguments: see TritonAttention.
    """
    # 1. Write K and V of the whole prompts to the pool.
    first, num_seqs = len(q) - sum(lengths), len(context_lens) - len(lengths)
    store(k[first:], v[first:], k_cache, v_cache, slot_mapping[first:])
    # 2. Attend from the sequences before them, as ever.
    if num_seqs:
        attention(
            q[:first], k[:first], v[:first], k_cache, v_cache, slot_mapping[:first], query_start[: num_seqs + 1],
            context_lens[:num_seqs], block_tables[:num_seqs], out[:first],
        )  # fmt: skip
    # 3. Attend from each whole prompt to itself. SDPA takes [1, H, n, D].
    of_prompts = zip(*(x[first:].split(lengths) for x in (out, q, k, v)), strict=True)
    with sdpa_kernel(BACKENDS):
        for result, *new in of_prompts:
            queries, keys, values = (x.transpose(0, 1)[None] for x in new)
            is_gqa = q.size(1) > k.size(1)
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=is_gqa)
            result.copy_(attended[0].transpose(0, 1))
    return out
