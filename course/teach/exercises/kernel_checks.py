"""What the checker of a learner's kernel needs: cases from easy to hard, and what typical mistakes would give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roseinfer.kernels import triton_mode
from roseinfer.kernels.cases import PagedCase, paged_case

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def plain_attention(case: PagedCase, mistake: str = "") -> Tensor:
    """Compute attention for each sequence on its own, gathered, in fp64, [B, H, D], with a mistake made on purpose.

    mistake: "" for none, or one of MISTAKES.
    """
    num_heads, num_kv_heads = case.q.size(1), case.k.size(1)
    head = torch.arange(num_heads)
    kv_head = head % num_kv_heads if mistake == "head" else head // (num_heads // num_kv_heads)
    scale = 1.0 if mistake == "scale" else case.q.size(-1) ** -0.5
    rows = []
    for i, num_tokens in enumerate(case.context_lens.tolist()):
        keys, values = (tokens[:, kv_head] for tokens in _tokens(case, i, num_tokens, mistake))  # [T, H, D]
        scores = torch.einsum("hd,thd->ht", case.q[i].double().cpu(), keys) * scale
        weights = torch.exp(scores - scores.amax(1, keepdim=True)) if mistake == "total" else scores.softmax(-1)
        rows.append(torch.einsum("ht,thd->hd", weights, values))
    return torch.stack(rows)


def _tokens(case: PagedCase, i: int, num_tokens: int, mistake: str) -> tuple[Tensor, Tensor]:
    """Gather the keys and values that sequence i attends to, [T, H_kv, D]: the cached ones, then the new one."""
    k, v, k_cache, v_cache = (tensor.double().cpu() for tensor in case[1:5])
    table = case.block_table[0 if mistake == "row" else i].tolist()
    cut = num_tokens - 1 if mistake == "last" and num_tokens else num_tokens
    cut = min(cut, k_cache.size(1)) if mistake == "one block" else cut
    cut = cut // k_cache.size(1) * k_cache.size(1) if mistake == "full blocks" else cut
    index, slot = torch.arange(cut) // k_cache.size(1), torch.arange(cut) % k_cache.size(1)
    index = torch.zeros_like(index) if mistake == "first block" else index
    block = torch.tensor(table)[index]
    if mistake in ("v", "v_cache"):
        v, v_cache = k if mistake == "v" else v, k_cache
    new = slice(i, i if mistake == "new" else i + 1)
    keys, values = torch.cat([k_cache[block, slot], k[new]]), torch.cat([v_cache[block, slot], v[new]])
    if mistake == "zeros":  # masked slots come as zeros, and weigh exp(0 - top)
        padding = torch.zeros(-num_tokens % k_cache.size(1), *keys.shape[1:], dtype=keys.dtype)
        keys, values = torch.cat([keys, padding]), torch.cat([values, padding])
    return keys, values


# In the order in which they are tried on an answer that is wrong.
MISTAKES = {
    "scale": "the scores are not multiplied by `scale`",
    "new": "the new token is left out: it is not in the cache yet, its key and value are k and v",
    "v": "the weighted sum is of keys: the values are in v and v_cache",
    "v_cache": "cached keys are summed up where cached values should be: these are in v_cache",
    "head": "a wrong KV head: query head h belongs to KV head h // (NUM_HEADS // NUM_KV_HEADS)",
    "last": "each sequence's last cached token is left out: token < num_cached",
    "zeros": "slots after the last token take part with a score of 0: their score must be -inf",
    "one block": "only each sequence's first block is read: its row of the table names more",
    "full blocks": "the tokens of a last block that is not full are left out: range(0, num_cached, BLOCK_SIZE)",
    "total": "the weighted sum is not divided by total at the end",
    "first block": "every tile reads the sequence's first block: the table's column is start // BLOCK_SIZE",
    "row": "every sequence reads the first sequence's blocks: row `seq` of the table begins at seq * table_row",
}


POOL = (
    "the pool's element (block, slot, kv_head, dim) lies at ((block * BLOCK_SIZE + slot) * NUM_KV_HEADS + kv_head) * "
    "HEAD_DIM + dim"
)


@dataclass(frozen=True)
class Trial:
    """One case for a kernel, tried after those before it were passed.

    if_wrong: what a wrong answer means when none of MISTAKES explains it. if_nan: what NaN means.
    """

    name: str
    make: Callable[[], PagedCase]
    if_wrong: str = ""
    if_nan: str = (
        "NaN came in: a slot past the sequence's own context_lens was read, mask the loads of K and V with other=0.0"
    )


def trials() -> list[Trial]:
    return [
        Trial(
            "nothing cached",
            lambda: _case([0, 0], num_kv_heads=1),
            "the answer is v of the new token, whose weight is exp(0) = 1",
            "NaN: start from the new token, total = 1 and acc = its v, and nothing is divided by 0",
        ),
        Trial(
            "one full block each, the new token's score the largest",
            lambda: _aimed([16, 16], 2.0),
            if_nan="NaN, though its block is full: the id stands in block_table, it is not the index of the block",
        ),
        Trial(
            "one full block each, the new token's score the smallest",
            lambda: _aimed([16, 16], -2.0),
            "right while the first score stays the largest, wrong once a larger one comes: what was summed up against "
            "the old top, acc and total, must shrink by exp(top - new_top)",
        ),
        Trial("blocks that are not full", lambda: _case([9, 1, 15], num_kv_heads=1)),
        Trial(
            "several full blocks",
            lambda: _case([32, 48, 0, 16], num_kv_heads=1),
            "right for one tile: each tile goes on from the top, total and acc of the one before it, and reads the "
            "block in its own column of row `seq`, which begins at seq * table_row",
            "NaN came in: a block was read that the sequence's row does not name. Row `seq` of the table begins at "
            "seq * table_row, and the tile that begins at `start` is in its column start // BLOCK_SIZE",
        ),
        Trial("several blocks", lambda: _case([17, 40, 0, 32], num_kv_heads=1)),
        Trial(
            "scores of a few hundred",
            _large,
            "right for small scores: no exp may get an argument above 0, so the new top is the larger of the old one "
            "and the tile's largest score",
            "NaN, and right for small scores: exp overflows past 88. The new top is the larger of the old one and the "
            "tile's largest score, so that no exp gets an argument above 0",
        ),
        Trial(
            "2 KV heads with 3 query heads each",
            lambda: _case([5, 20], group=3),
            POOL,
            f"NaN came in, and right for one KV head: {POOL}",
        ),
        Trial(
            "a head size of 80, padded to 128",
            lambda: _case([20, 3], num_kv_heads=1, group=2, head_dim=80),
            "mask every load and the store with dim < HEAD_DIM",
            "NaN came in: mask every load and the store with dim < HEAD_DIM, and give the loads other=0.0",
        ),
        Trial("fp16", lambda: _case([20, 3], dtype=torch.float16), "right in fp32: upcast after every load"),
        Trial(
            "bf16",
            lambda: _case([20, 3], dtype=torch.bfloat16),
            "right in fp32: upcast after every load, before any arithmetic",
            "NaN, and right in fp32: upcast after every load, before any arithmetic",
        ),
    ]


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


def _case(context_lens: list[int], **shape: Any) -> PagedCase:
    return paged_case(context_lens, device="cuda" if triton_mode.MODE == "compile" else "cpu", **shape)


def _large() -> PagedCase:
    """Make a case of several tiles whose scores are more than 88 apart.

    The new token's score is the largest in sequence 0 and the smallest in sequence 1; in sequence 2 the largest score
    is in the first tile.
    """
    case = _case([40, 40, 40], num_kv_heads=1)
    k = case.k.clone()
    k[0], k[1] = case.q[0], -case.q[1]
    k_cache = case.k_cache.clone()
    k_cache[case.block_table[2, 0], 0] = case.q[2]
    return case._replace(q=64 * case.q, k=k, k_cache=k_cache)


def _aimed(context_lens: list[int], factor: float) -> PagedCase:
    """Make a case whose new keys point along the queries or against them; the first score is the largest, or least."""
    case = _case(context_lens, num_kv_heads=1)
    return case._replace(k=factor * case.q)
