"""Attention over flat batches as a Triton kernel, launched once a layer, or twice where decodes and chunks may mix.

- A program serves one KV head and a tile of query rows, which are the query heads on that head (GQA) of one token, or
  of a few neighbouring tokens of a chunk. Whatever it loads of K and V serves all of its rows.
- The pool has the tokens of earlier steps. The new ones are read where the products left them, and each program writes
  K and V of its own tile to the pool. No program reads a slot that another one writes, so no launch has to write them
  first, and no program waits at a barrier, which a grid doesn't have. Only where sequences of a batch see each other's
  new tokens does store_kernel write all of them first.
- A small batch has few programs, and if each of them walks 32,768 tokens, most of the GPU is idle. Then the tokens that
  a tile sees are split among several programs, and the one that finishes last weights and adds what they found.

What is launched follows from shapes alone (attention_tilings), never from values on the device: no sync, and a CUDA
graph that was captured with one set of lengths is right for all. Lengths are read in the kernel: there a program finds
out what it has to do, if anything, and how many splits its context is worth.

Online softmax: Milakov and Gimelshein, 2018. Block tables: Kwon et al., "PagedAttention", 2023. Tiles: Dao et al.,
"FlashAttention", 2022. Splits: Dao et al., "Flash-Decoding", 2023.
"""

from __future__ import annotations

from functools import partial as with_options

import torch
from torch import Tensor

from . import triton_mode
from .attention_arguments import check_max_query_len, check_tensors
from .attention_tilings import SCRATCH_ROWS, Launch, attend_launches, store_shape

tl = triton_mode.language()

LOG2_E = 1.4426950408889634  # exp(x) is exp2(x * LOG2_E), and exp2 is what a GPU has an instruction for
# These differ from step to step, and none of them is worth a step that waits for the compiler.
jit = with_options(triton_mode.jit, do_not_specialize=("num_rows", "num_seqs", "table_row"))


@jit
def store_kernel(
    k, v, k_cache, v_cache, slot_mapping, num_rows,
    k_token, k_head, v_token, v_head,  # strides, in elements
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy ROWS rows of HEAD_DIM values in each program; row r is head r % NUM_KV_HEADS of token r // NUM_KV_HEADS."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = row // NUM_KV_HEADS, row % NUM_KV_HEADS
    dim = tl.arange(0, DIM_PAD)[None, :]
    real = (row < num_rows)[:, None] & (dim < HEAD_DIM)
    # int64, for a pool may have more than 2^31 values.
    slot = tl.load(slot_mapping + token, mask=row < num_rows, other=0).to(tl.int64)
    cache_row = (slot // BLOCK_SIZE * NUM_KV_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    to = cache_row[:, None] * HEAD_DIM + dim
    keys = tl.load(k + token[:, None] * k_token + head[:, None] * k_head + dim, mask=real)
    values = tl.load(v + token[:, None] * v_token + head[:, None] * v_head + dim, mask=real)
    tl.store(k_cache + to, keys, mask=real)
    tl.store(v_cache + to, values, mask=real)


@jit
def sequence_of(tile, query_start, num_seqs, TILE_TOKENS: tl.constexpr):
    """Find the sequence that a tile of query tokens belongs to, by binary search.

    The tiles of sequence i begin at number query_start[i] // TILE_TOKENS + i: for n tokens that leaves room for
    ceil(n / TILE_TOKENS) tiles, often one too many. So the grid needs no list of tiles, which the host could make only
    from lengths, and a tile that is too many finds nothing to do.
    """
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // TILE_TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@jit
def attend_kernel(
    out, partial, tops, totals, counters, q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens,
    block_tables, scale, num_seqs,
    out_token, out_head, q_token, q_head, k_token, k_head, v_token, v_head, table_row,  # strides, in elements
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE_TOKENS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, SPLITS_AT_ONCE: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    AMONG_CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend from query tile program_id(0) on KV head program_id(1) to split program_id(2) of the tokens that it sees.

    A program has ROWS rows of queries: row r is query head r % GROUP of the tile's token r // GROUP, up to TILE_TOKENS
    tokens. It reads TILE tokens at a time, STAGES of them in flight. SPLIT_TOKENS is 0 where nothing is split.

    TILE_TOKENS is 1 for decodes: then a tile is a sequence, whose one token has its number, unless decodes lie
    AMONG_CHUNKS. In such a batch the launch of decodes serves the sequences with one token, the launch of chunks the
    longer ones, and both leave a sequence without tokens alone. A launch of chunks is alone if it has one sequence.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # 1. Which tokens does the tile have?
    if TILE_TOKENS == 1:
        seq, start, first, num_new = tile, tile, 0, 1
        if AMONG_CHUNKS:
            start = tl.load(query_start + seq)
            if tl.load(query_start + seq + 1) - start != 1:
                return
    else:
        tile = tl.num_programs(0) - 1 - tile  # the last tiles of a prompt see the most, so they begin first
        seq = sequence_of(tile, query_start, num_seqs, TILE_TOKENS)
        start = tl.load(query_start + seq)
        first = (tile - start // TILE_TOKENS - seq) * TILE_TOKENS
        num_new = tl.load(query_start + seq + 1) - start
        if (first >= num_new) | ((num_new == 1) & (num_seqs > 1)):  # a tile too many, or a decode
            return
    num_cached = tl.load(context_lens + seq) - num_new

    # 2. How many splits is what it sees worth? Whole tiles to each, as evenly as they come. A decode's token sees
    # itself as well, which costs too little to count.
    reach = num_cached
    if TILE_TOKENS > 1:
        reach += tl.minimum(first + TILE_TOKENS, num_new)
    if SPLIT_TOKENS:
        reach_or_1 = tl.maximum(reach, 1)
        splits = tl.minimum(tl.cdiv(reach_or_1, SPLIT_TOKENS), tl.num_programs(2))
        split_tokens = tl.cdiv(tl.cdiv(reach_or_1, TILE), splits) * TILE
        splits = tl.cdiv(reach_or_1, split_tokens)
        if split >= splits:
            return
        low = split * split_tokens
        high = tl.minimum(low + split_tokens, reach)
    else:
        splits, low, high = 1, 0, reach

    row = tl.arange(0, ROWS)
    token = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    real_row = (row < TILE_TOKENS * GROUP) & (token < num_new)
    dim = tl.arange(0, DIM_PAD)[None, :]
    real_dim = dim < HEAD_DIM
    real = real_row[:, None] & real_dim
    query = tl.load(q + (start + token)[:, None] * q_token + head[:, None] * q_head + dim, mask=real, other=0.0)
    if UPCAST:  # the interpreter computes bf16 products and sums wrongly
        query = query.to(tl.float32)

    top = tl.full([ROWS], float("-inf"), tl.float32)  # the largest score so far, in powers of two
    total = tl.zeros([ROWS], tl.float32)  # sum of exp2(score - top)
    acc = tl.zeros([ROWS, DIM_PAD], tl.float32)  # sum of exp2(score - top) * value
    k_new = k + start * k_token + kv_head * k_head
    v_new = v + start * v_token + kv_head * v_head
    if TILE_TOKENS == 1:
        # 3. A decode's split 0 begins with the new token.
        key = tl.load(k_new + dim, mask=real_dim, other=0.0)
        value = tl.load(v_new + dim, mask=real_dim, other=0.0)
        if split == 0:
            top = tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * scale
            total = tl.full([ROWS], 1.0, tl.float32)
            acc += value.to(tl.float32)

    # 4. Walk the pool.
    pool_end = tl.minimum(high, num_cached)
    for at in tl.range(low, pool_end, TILE, num_stages=STAGES):
        seen = at + tl.arange(0, TILE)
        # Slots that hold no token of the sequence may hold anything: they are not loaded, for 0 times NaN is NaN.
        written = seen < pool_end
        if TILE <= BLOCK_SIZE:  # then a tile lies in one block
            block = tl.load(block_tables + seq * table_row + at // BLOCK_SIZE).to(tl.int64)
        else:
            block = tl.load(block_tables + seq * table_row + seen // BLOCK_SIZE, mask=written, other=0).to(tl.int64)
        cache_row = (block * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + seen % BLOCK_SIZE
        readable = written[:, None] & real_dim
        keys = tl.load(k_cache + cache_row[:, None] * HEAD_DIM + dim, mask=readable, other=0.0)
        values = tl.load(v_cache + cache_row[:, None] * HEAD_DIM + dim, mask=readable, other=0.0)
        top, total, acc = attended(
            query, keys, values, written[None, :], scale, top, total, acc, ROWS, False, PRECISION, UPCAST
        )

    if TILE_TOKENS > 1:
        # 5. Walk the new tokens: first the tiles of them that every row sees whole, which need no mask.
        new_low = tl.maximum(low - num_cached, 0)
        new_high = high - num_cached
        whole = new_low + tl.maximum(tl.minimum(first + 1, new_high) - new_low, 0) // TILE * TILE
        padded: tl.constexpr = HEAD_DIM < DIM_PAD
        for at in tl.range(new_low, whole, TILE, num_stages=STAGES):
            seen = (at + tl.arange(0, TILE))[:, None]
            if padded:
                keys = tl.load(k_new + seen * k_token + dim, mask=real_dim, other=0.0)
                values = tl.load(v_new + seen * v_token + dim, mask=real_dim, other=0.0)
            else:
                keys = tl.load(k_new + seen * k_token + dim)
                values = tl.load(v_new + seen * v_token + dim)
            top, total, acc = attended(
                query, keys, values, None, scale, top, total, acc, ROWS, False, PRECISION, UPCAST
            )
        for at in tl.range(whole, new_high, TILE, num_stages=STAGES):
            seen = at + tl.arange(0, TILE)
            readable = (seen < new_high)[:, None] & real_dim
            keys = tl.load(k_new + seen[:, None] * k_token + dim, mask=readable, other=0.0)
            values = tl.load(v_new + seen[:, None] * v_token + dim, mask=readable, other=0.0)
            visible = (seen[None, :] <= token[:, None]) & (seen < new_high)[None, :]
            top, total, acc = attended(
                query, keys, values, visible, scale, top, total, acc, ROWS, SPLIT_TOKENS > 0, PRECISION, UPCAST
            )

    # 6. Write K and V of the tile's tokens to the pool. No program reads them there, unless they are there already.
    if TILE_TOKENS == 1:
        slot = tl.load(slot_mapping + start).to(tl.int64)  # a pool may have more than 2^31 values
        to = ((slot // BLOCK_SIZE * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + dim
        tl.store(k_cache + to, key, mask=real_dim & (split == 0))
        tl.store(v_cache + to, value, mask=real_dim & (split == 0))
    else:
        writes = real_row & (row % GROUP == 0) & (split == 0)
        slot = tl.load(slot_mapping + start + token, mask=writes, other=0).to(tl.int64)
        cache_row = (slot // BLOCK_SIZE * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
        to, copied = cache_row[:, None] * HEAD_DIM + dim, writes[:, None] & real_dim
        tl.store(k_cache + to, tl.load(k_new + token[:, None] * k_token + dim, mask=copied), mask=copied)
        tl.store(v_cache + to, tl.load(v_new + token[:, None] * v_token + dim, mask=copied), mask=copied)

    # 7. Write the result, or hand it to the program that finishes last.
    to = out + (start + token)[:, None] * out_token + head[:, None] * out_head + dim
    if splits == 1:
        tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)
    else:
        # Not divided yet: where a row saw nothing, top is -inf, total 0 and acc 0, which count for nothing.
        unit = tile * NUM_KV_HEADS + kv_head
        kept_rows: tl.constexpr = TILE_TOKENS * GROUP
        kept = unit * tl.num_programs(2) * kept_rows + row
        mine = kept + split * kept_rows
        tl.store(partial + mine[:, None] * HEAD_DIM + dim, acc, mask=real)
        tl.store(tops + mine, top, mask=real_row)
        tl.store(totals + mine, total, mask=real_row)
        tl.debug_barrier()  # all threads have written before one of them counts the program
        if tl.atomic_add(counters + unit, 1, sem="acq_rel") == splits - 1:
            tl.store(counters + unit, 0)  # for the next launch
            result = combined(
                partial, tops, totals, kept, splits, real_row, kept_rows, ROWS, HEAD_DIM, DIM_PAD, SPLITS_AT_ONCE
            )
            tl.store(to, result.to(out.dtype.element_ty), mask=real)


@jit
def attended(
    query, keys, values, visible, scale, top, total, acc,
    ROWS: tl.constexpr, MAY_SEE_NOTHING: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Attend to one tile of keys and values, and return top, total and acc with it.

    visible: which of its tokens a row sees; None: all. MAY_SEE_NOTHING: a row may have seen no token up to here.
    """
    if UPCAST:
        keys, values = keys.to(tl.float32), values.to(tl.float32)
    if ROWS == 1:  # a tensor core takes 16 rows at least, and 15 of them would be padding
        scores = tl.sum(query.to(tl.float32) * keys.to(tl.float32), axis=1)[None, :]
    else:
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION)
    if visible is not None:
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MAY_SEE_NOTHING else new_top  # -inf - -inf is NaN
    weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(top - base)  # what was summed up against the old top
    total = total * shrink + tl.sum(weights, axis=1)
    if ROWS == 1:
        new = tl.sum(tl.trans(weights) * values.to(tl.float32), axis=0)[None, :]
        acc = acc * shrink[:, None] + new
    else:
        acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
    return new_top, total, acc


@jit
def combined(
    partial, tops, totals, kept, splits, real_row, KEPT_ROWS: tl.constexpr, ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, SPLITS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Weight and add what all splits found, in their order: the sums do not depend on which program came last.

    It reads SPLITS_AT_ONCE of them at a time: one after another, each would cost the time that memory takes to answer.
    """
    dim = tl.arange(0, DIM_PAD)[None, None, :]
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM_PAD], tl.float32)
    ahead: tl.constexpr = 4 if ROWS <= 16 else 1  # as shared memory allows
    for first in tl.range(0, splits, SPLITS_AT_ONCE, num_stages=ahead):
        split = first + tl.arange(0, SPLITS_AT_ONCE)[:, None]
        real = (split < splits) & real_row[None, :]
        at = kept[None, :] + split * KEPT_ROWS
        split_tops = tl.load(tops + at, mask=real, other=float("-inf"))
        split_totals = tl.load(totals + at, mask=real, other=0.0)
        readable = real[:, :, None] & (dim < HEAD_DIM)
        split_accs = tl.load(partial + at[:, :, None] * HEAD_DIM + dim, mask=readable, other=0.0)
        new_top = tl.maximum(top, tl.max(split_tops, axis=0))  # finite: every row sees a token of split 0
        base = tl.where(real_row, new_top, 0.0)
        shrink, weights = tl.exp2(top - base), tl.exp2(split_tops - base[None, :])
        total = total * shrink + tl.sum(split_totals * weights, axis=0)
        acc = acc * shrink[:, None] + tl.sum(split_accs * weights[:, :, None], axis=0)
        top = new_top
    return acc / tl.where(real_row, total, 1.0)[:, None]


class TritonAttention:
    """Attention on a GPU, for launches that run one after another: they share the memory of their splits.

    Such are the launches of one stream, also where they overlap: before a program writes anything, it waits until the
    launch before is complete (PDL in attend_kernel), and a launch leaves all its counters at 0.

    Called as a function, it attends to the tokens in the pool and to N new ones, and writes K and V of these to the
    pool. Sums are fp32. With 16-bit tensors the softmax's weights are rounded to 16 bits, too, where tensor cores
    multiply them; a product of fp32 is the sum of three of tf32.

    in_one_launch: no sequence sees a token in the pool that another one of the same call brings. Otherwise a launch of
    its own writes all K and V first: a grid has no barrier.
    """

    def __init__(self, in_one_launch: bool = False) -> None:
        self.in_one_launch = in_one_launch
        # Shapes, strides, dtypes and max_query_len of the last call, which all layers of a step share.
        self.layout: object = None
        self.launches: tuple[Launch, ...]
        self.scratch: dict[int, tuple[Tensor, ...]] = {}  # by head size; kept, for graphs have its addresses

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor,
        query_start: Tensor, context_lens: Tensor, block_tables: Tensor, out: Tensor | None = None,
        max_query_len: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the attention [N, H, D] of N new tokens in q's dtype, and write their K and V to the pool.

        Args:
            q: [N, H, D], the new tokens of B sequences, which lie one after another.
            k: [N, H_kv, D] of these tokens.
            v: [N, H_kv, D] of these tokens.
            k_cache: [num_blocks, H_kv, block_size, D], contiguous, block_size a power of two.
            v_cache: as k_cache.
            slot_mapping: int32 [N], block * block_size + offset of each new token.
            query_start: int32 [B + 1]; tokens query_start[i] to query_start[i + 1] are sequence i's. If there are none,
                nothing else of the sequence is read.
            context_lens: int32 [B], tokens of each sequence, the new ones included.
            block_tables: int32 [B, W], block ids in token order; those after the last used one are ignored.
            out: memory for the result; None: new memory.
            max_query_len: the most new tokens of a sequence, for which the launches are cut. 1: each sequence has one;
                with any larger number the result is the same. None: the most possible where each has at least one.

        Raises ValueError for tensors that the kernels cannot read, TritonUnavailable where no kernel can run.
        """
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        tensors = q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables, out
        (num_tokens, num_heads, head_dim), (_, num_kv_heads, block_size, _) = q.shape, k_cache.shape
        num_seqs, columns = block_tables.shape
        if max_query_len is None:
            max_query_len = num_tokens - num_seqs + 1
        layout = max_query_len, [(x.shape, x.stride(), x.dtype) for x in tensors]
        if layout != self.layout:
            triton_mode.require_triton(q.device.type)
            check_tensors(*tensors)
            check_max_query_len(max_query_len, num_tokens, num_seqs)
            self.launches = attend_launches(
                num_tokens, num_seqs, max_query_len, num_kv_heads, num_heads // num_kv_heads, head_dim, block_size,
                columns, itemsize=q.element_size(),
            )  # fmt: skip
            self.layout = layout
            if head_dim not in self.scratch:
                self.scratch[head_dim] = scratch_memory(head_dim, q.device)

        if not self.in_one_launch:
            store(k, v, k_cache, v_cache, slot_mapping)
        for launch in self.launches:
            attend_kernel[launch.grid](
                out, *self.scratch[head_dim], q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens,
                block_tables, head_dim**-0.5 * LOG2_E, num_seqs, *out.stride()[:2], *q.stride()[:2], *k.stride()[:2],
                *v.stride()[:2], block_tables.stride(0), **launch.options, **triton_mode.pdl_options(),
            )  # fmt: skip
        return out


def store(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write K and V [N, H_kv, D] of new tokens to their slots, in one launch."""
    num_rows, (_, num_kv_heads, block_size, head_dim) = len(k) * k.size(1), k_cache.shape
    shape = store_shape(num_kv_heads, head_dim, block_size)
    store_kernel[(-(-num_rows // shape["ROWS"]),)](
        k, v, k_cache, v_cache, slot_mapping, num_rows, *k.stride()[:2], *v.stride()[:2], **shape,
        **triton_mode.pdl_options(),
    )  # fmt: skip


def scratch_memory(head_dim: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return partial, tops, totals and counters of attend_kernel; between launches the counters are 0."""
    partial = torch.empty((SCRATCH_ROWS, head_dim), dtype=torch.float32, device=device)
    tops, totals = torch.empty((2, SCRATCH_ROWS), dtype=torch.float32, device=device)
    return partial, tops, totals, torch.zeros(SCRATCH_ROWS, dtype=torch.int32, device=device)
