"""Checks of a learner's own attention (05.3, 07.2): through block tables, against plain attention, on drawn batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roseinfer.kernels.cases import PagedCase, paged_case

from .drawn import Case, Comparison, Expected
from .explain import explain_tensor
from .tensor_checks import require_unchanged

UPCAST = "right in fp32? Then upcast after every load, before any arithmetic"
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Batch(NamedTuple):
    """Case. times: what q is multiplied by. shift: what is added to all scores."""

    context_lens: Sequence[int]
    num_kv_heads: int
    group: int
    head_dim: int
    block_size: int
    dtype: str
    times: int = 1
    shift: float = 0.0

    def __str__(self) -> str:
        shape = f"context_lens={list(self.context_lens)}, H={self.num_kv_heads * self.group}, H_kv={self.num_kv_heads}"
        sizes = f"D={self.head_dim}, blocks of {self.block_size}, {self.dtype}"
        large = f", scores {self.times} times as large (exp overflows past 88)" if self.times != 1 else ""
        around = f", scores of about {self.shift:g} (exp: inf past 88, 0 below -104)" if self.shift else ""
        return f"{shape}, {sizes}{large}{around}"


Attention = Callable[..., Tensor]  # with the arguments of paged_attention_reference


# Scores of a few hundred, of either sign: exp overflows in fp32 past 88, and is 0 below -104.
LARGE_SCORES = [
    Batch([0, 0, 0], 2, 2, 4, 4, "fp32", 128),
    Batch([1, 2, 1], 1, 3, 4, 4, "fp32", 128),
    Batch([3, 9, 0], 2, 2, 4, 4, "fp32", 128),
    Batch([3, 9, 0], 2, 2, 4, 4, "fp32", 1, 110.0),
    Batch([3, 9, 0], 2, 2, 4, 4, "fp32", 1, -110.0),
]


def attention_comparison(batches: Sequence[Case], mistakes: Mapping[str, Attention], device: str = "cpu") -> Comparison:
    """Compare an attention with plain attention on batches, in q's dtype. It must not change what it is given.

    mistakes: maps what is said about a mistake to an attention that makes it.
    """

    def right(*batch: Any) -> Tensor:
        case = _case_of(Batch(*batch), device)
        return _plain_attention(case).to(case.q.device, case.q.dtype)

    def attend(attention: Attention, *batch: Any) -> Tensor:
        return _attend(attention, _case_of(Batch(*batch), device))

    def mistaken(*batch: Any, attention: Attention) -> Tensor:
        return attention(*_case_of(Batch(*batch), device))

    known = {why: partial(mistaken, attention=attention) for why, attention in mistakes.items()}
    return Comparison(batches, Expected(right, known, _explain), lambda *batch: str(Batch(*batch)), attend)


def draw_lengths(rng: Random, block_size: int, most: int, most_seqs: int = 4) -> list[int]:
    """Draw the cached tokens of up to most_seqs sequences, often at the edge of a block."""
    edges = (0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size)
    return [rng.choice((*edges, rng.randint(0, most))) for _ in range(rng.randint(1, most_seqs))]


def _case_of(batch: Batch, device: str) -> PagedCase:
    case = paged_case(
        batch.context_lens,
        num_kv_heads=batch.num_kv_heads,
        group=batch.group,
        head_dim=batch.head_dim,
        block_size=batch.block_size,
        dtype=DTYPES[batch.dtype],
        device=device,
    )
    case = _spread(case)
    return _shifted(case, batch.shift) if batch.shift else case._replace(q=case.q * batch.times)


def _plain_attention(case: PagedCase) -> Tensor:
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


def _spread(case: PagedCase) -> PagedCase:
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


def _shifted(case: PagedCase, shift: float) -> PagedCase:
    """Add `shift` to every score, which changes no weight: dim 0 of each key becomes 1, and of each query shift."""
    q, k, k_cache = case.q.clone(), case.k.clone(), case.k_cache.clone()
    q[..., 0], k[..., 0] = shift * q.size(-1) ** 0.5, 1.0
    k_cache[..., 0] -= k_cache[..., 0] - 1.0  # NaN stays NaN
    return case._replace(q=q, k=k, k_cache=k_cache)


def _attend(attention: Attention, case: PagedCase) -> Tensor:
    handed = PagedCase(*(tensor.clone() for tensor in case))
    width = case.block_table.size(1)
    wide = torch.cat([handed.block_table, handed.block_table], dim=1)
    # As a step cuts it: rows lie further apart than they are wide.
    handed = handed._replace(block_table=wide[:, :width])
    got = attention(*handed)
    require_unchanged(case, handed, PagedCase._fields, ": attention only reads, append writes the pool")
    return got


def explain_attention(got: object, want: Tensor, where_nan_lies: str) -> str | None:
    """Say what is wrong with the result of an attention; None if nothing is."""
    message = explain_tensor(got, want, TOLERANCE[want.dtype], TOLERANCE[want.dtype])
    if message and isinstance(got, Tensor) and got.shape == want.shape:
        if got.dtype != want.dtype:
            return f"{message}: the output has q's dtype"
        if got.isnan().any():
            return f"{message}; NaN lies {where_nan_lies}"
        if want.dtype != torch.float32:
            return f"{message}; {UPCAST}"
    return message


def _explain(got: object, want: Tensor) -> str | None:
    unwritten = (
        "where nothing was written, in slots from context_lens on and in blocks that the sequence's row does not name, "
        "and exp of a large score makes it: inf / inf"
    )
    return explain_attention(got, want, unwritten)
