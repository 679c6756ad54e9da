"""Plain attention, and block tables in which no block stands where one would guess."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.kernels.cases import PagedCase

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def plain_attention(case: PagedCase) -> Tensor:
    """Compute attention for each sequence on its own, gathered, in fp64, [B, H, D]."""
    group = case.q.size(1) // case.k.size(1)
    rows = []
    for i, num_tokens in enumerate(case.context_lens.tolist()):
        keys, values = (tokens.repeat_interleave(group, dim=1) for tokens in _tokens(case, i, num_tokens))  # [T, H, D]
        scores = torch.einsum("hd,thd->ht", case.q[i].double().cpu(), keys) * case.q.size(-1) ** -0.5
        rows.append(torch.einsum("ht,thd->hd", scores.softmax(-1), values))
    return torch.stack(rows)


def _tokens(case: PagedCase, i: int, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Gather the keys and values that sequence i attends to, [T, H_kv, D]: the cached ones, then the new one."""
    k, v, k_cache, v_cache = (tensor.double().cpu() for tensor in case[1:5])
    position, block_size = torch.arange(num_tokens), k_cache.size(1)
    block, slot = case.block_table[i].cpu()[position // block_size], position % block_size
    return torch.cat([k_cache[block, slot], k[i : i + 1]]), torch.cat([v_cache[block, slot], v[i : i + 1]])


def spread(case: PagedCase) -> PagedCase:
    """Renumber the blocks of a case: block 0 may be a sequence's, and after a sequence's own a row names any."""
    generator = torch.Generator().manual_seed(0)
    num_blocks, block_size = case.k_cache.shape[:2]
    places = torch.randperm(num_blocks, generator=generator)  # where each block is put
    columns = torch.arange(case.block_table.size(1))
    own = columns < -(-case.context_lens.cpu() // block_size)[:, None]
    any_block = torch.randint(num_blocks, own.shape, generator=generator)
    table = torch.where(own, places[case.block_table.cpu()], any_block).to(case.block_table)
    moved = places.argsort().to(case.k_cache.device)
    return case._replace(k_cache=case.k_cache[moved], v_cache=case.v_cache[moved], block_table=table)
