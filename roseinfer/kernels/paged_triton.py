"""Attention over flat batches as a Triton kernel, launched once a layer.

- A program serves one KV head and a tile of query rows, which are the query heads on that head (GQA) of one token, or
  of a few neighbouring tokens of a chunk. Whatever it loads of K and V serves all of its rows.
- The pool has the tokens of earlier steps. The new ones are read where the products left them, and each program writes
  K and V of its own tile to the pool. No program reads a slot that another one writes, so a layer needs no second
  launch, and no barrier, which a grid doesn't have. Only where sequences of a batch see each other's new tokens does
  store_kernel write all of them first.
- A small batch has few programs, and if each of them walks 32,768 tokens, most of the GPU is idle. Then the tokens that
  a tile sees are split among several programs, and the one that finishes last weights and adds what they found.

What is launched follows from shapes alone, never from values on the device: no sync, and a CUDA graph that was captured
with one set of lengths is right for all. Lengths are read in the kernel: there a program finds out what it has to do,
and how many splits its context is worth.

Online softmax: Milakov and Gimelshein, 2018. Block tables: Kwon et al., "PagedAttention", 2023. Tiles: Dao et al.,
"FlashAttention", 2022. Splits: Dao et al., "Flash-Decoding", 2023.
"""

from __future__ import annotations

from functools import partial as with_options
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import triton_mode

tl = triton_mode.language()

LOG2_E = 1.4426950408889634  # exp(x) is exp2(x * LOG2_E), and exp2 is what a GPU has an instruction for
COMBINED_VALUES = 512  # of the splits' results, read at a time by each warp of the program that adds them
SCRATCH_ROWS = 1 << 14  # rows of queries, each counted once a split, whose splits are kept until they are added
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
    PDL: tl.constexpr,
):  # fmt: skip
    """Attend from query tile program_id(0) on KV head program_id(1) to split program_id(2) of the tokens that it sees.

    A program has ROWS rows of queries: row r is query head r % GROUP of the tile's token r // GROUP, up to TILE_TOKENS
    tokens. It reads TILE tokens at a time, STAGES of them in flight. TILE_TOKENS is 1 for a batch of decodes: then a
    tile is a sequence. SPLIT_TOKENS is 0 where nothing is split.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # 1. Which tokens does the tile have?
    if TILE_TOKENS == 1:
        seq, start, first, num_new = tile, tile, 0, 1
    else:
        tile = tl.num_programs(0) - 1 - tile  # the last tiles of a prompt see the most, so they begin first
        seq = sequence_of(tile, query_start, num_seqs, TILE_TOKENS)
        start = tl.load(query_start + seq)
        first = (tile - start // TILE_TOKENS - seq) * TILE_TOKENS
        num_new = tl.load(query_start + seq + 1) - start
    num_cached = tl.load(context_lens + seq) - num_new
    if first >= num_new:  # a tile too many
        return

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
        slot = tl.load(slot_mapping + seq).to(tl.int64)  # a pool may have more than 2^31 values
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


class Tiling(NamedTuple):
    """How attend_kernel cuts a batch; see tiling_of.

    rows: of queries in a program. tile: cached tokens that it reads at a time. stages: tiles in flight. warps: of a
    program. programs: a batch with fewer is split. split_tokens: cached tokens that are worth a split of their own.
    """

    rows: int
    tile: int
    stages: int
    warps: int
    programs: int
    split_tokens: int


class Launch(NamedTuple):
    """One launch of attend_kernel: its grid (query tiles, KV heads, splits), and its constexprs and warps."""

    grid: tuple[int, int, int]
    options: dict[str, Any]


def tiling_of(num_tokens: int, num_seqs: int, group: int, head_dim: int, itemsize: int) -> Tiling:
    """Choose a batch's tiling, of those that do not spill registers (`roseinfer aot`).

    For decodes in 16 bits it is what was fastest on an H200, or nearly; from 32 sequences on, what was fastest for 64.
    Prompts have tilings there that are faster and spill on an A100, and of fp32 only prompts were measured.

    num_tokens, num_seqs: of the batch; if they are equal, each sequence brings one token. itemsize: bytes of a value.
    """
    dim = padded_dim(head_dim)
    is_decode = num_tokens == num_seqs
    if is_decode:
        rows = max(16, power_of_two(group))
    else:  # as many as a sequence brings on average
        most = min(128, 8192 // dim) if itemsize == 2 else 32
        rows = max(16, 2 * power_of_two(group), min(most, power_of_two(group * num_tokens // num_seqs)))
    if itemsize == 4:
        if is_decode and group == 1:
            return Tiling(1, max(16, 2048 // dim), 1, 2, programs=1024, split_tokens=128)
        # A product of fp32 is made of several 16-bit ones, whose values are all in registers: more threads.
        return Tiling(rows, max(16, min(32, 2048 // dim)), 2, 8 if rows * dim > 2048 else 4, 256, split_tokens=256)
    if not is_decode:
        return Tiling(rows, max(16, min(64, 8192 // dim)), 2, 8 if rows * dim > 4096 else 4, 256, split_tokens=256)
    if group > 1 and num_seqs < 4:
        return Tiling(rows, max(16, min(128, 16384 // dim)), 3, 8, programs=256, split_tokens=128)
    if group > 1:
        return Tiling(rows, max(16, min(64, 8192 // dim)), 3, 4, programs=512, split_tokens=256)
    if num_seqs < 32:
        return Tiling(1, max(16, 4096 // dim), 1, 2, programs=1024, split_tokens=64)
    if num_seqs < 256:  # a tensor core takes 16 rows, and 15 of them are padding: still faster than a sum
        return Tiling(16, max(16, min(64, 8192 // dim)), 3, 4, programs=1024, split_tokens=256)
    return Tiling(1, max(16, 2048 // dim), 1, 2, programs=1024, split_tokens=256)


def attend_launch(
    num_tokens: int, num_seqs: int, num_kv_heads: int, group: int, head_dim: int, block_size: int, columns: int,
    itemsize: int,
) -> Launch:  # fmt: skip
    """Cut a batch into programs, from shapes alone. columns: of the block tables. For the others see tiling_of."""
    t = tiling_of(num_tokens, num_seqs, group, head_dim, itemsize)
    tile_tokens = 1 if num_tokens == num_seqs else t.rows // group
    tiles = query_tiles(num_tokens, num_seqs, tile_tokens)
    programs = tiles * num_kv_heads
    most = SCRATCH_ROWS // (programs * tile_tokens * group)
    splits = min(t.programs // programs, most, columns * block_size // t.split_tokens)
    splits, dim_pad, is_interpreted = max(1, splits), padded_dim(head_dim), triton_mode.MODE == "interpret"
    options = {
        "NUM_KV_HEADS": num_kv_heads, "GROUP": group, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad,
        "BLOCK_SIZE": block_size, "ROWS": t.rows, "TILE_TOKENS": tile_tokens, "TILE": t.tile, "STAGES": t.stages,
        "SPLIT_TOKENS": t.split_tokens if splits > 1 else 0, "num_warps": t.warps,
        "SPLITS_AT_ONCE": max(1, min(8, COMBINED_VALUES * t.warps // (t.rows * dim_pad))),
        "PRECISION": "ieee" if itemsize == 2 or is_interpreted else "tf32x3", "UPCAST": is_interpreted,
    }  # fmt: skip
    return Launch((tiles, num_kv_heads, splits), options)


def store_shape(num_kv_heads: int, head_dim: int, block_size: int) -> dict[str, int]:
    """Return store_kernel's constexprs."""
    dim_pad = power_of_two(head_dim)
    return {
        "NUM_KV_HEADS": num_kv_heads, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad, "BLOCK_SIZE": block_size,
        "ROWS": max(1, 2048 // dim_pad),
    }  # fmt: skip


def query_tiles(num_tokens: int, num_seqs: int, tile_tokens: int) -> int:
    """Return the number of tiles of the grid for the new tokens: as many as any lengths may need, see sequence_of."""
    return num_seqs if tile_tokens == 1 else num_tokens // tile_tokens + num_seqs


def padded_dim(head_dim: int) -> int:
    """Return the head size of a tile: no side of what tl.dot multiplies may be shorter than 16."""
    return max(16, power_of_two(head_dim))


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below n; the sides of a Triton tile are powers of two."""
    return 1 << (n - 1).bit_length()


class TritonAttention:
    """Attention on a GPU, for launches that run one after another: they share the memory of their splits.

    Called as a function, it attends to the tokens in the pool and to N new ones, and writes K and V of these to the
    pool. Sums are fp32. With 16-bit tensors the softmax's weights are rounded to 16 bits, too, where tensor cores
    multiply them; a product of fp32 is the sum of three of tf32.

    in_one_launch: no sequence sees a token in the pool that another one of the same call brings. Otherwise a launch of
    its own writes all K and V first: a grid has no barrier.
    """

    def __init__(self, in_one_launch: bool = False) -> None:
        self.in_one_launch = in_one_launch
        self.layout: object = None  # shapes, strides and dtypes of the last call, which all layers of a step share
        self.launch: Launch
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
            query_start: int32 [B + 1]; tokens query_start[i] to query_start[i + 1], at least one, are sequence i's.
            context_lens: int32 [B], tokens of each sequence, the new ones included.
            block_tables: int32 [B, W], block ids in token order; those after the last used one are ignored.
            out: memory for the result; None: new memory.
            max_query_len: the most new tokens of a sequence; None where it is not known.

        Raises ValueError for tensors that the kernels cannot read, TritonUnavailable where no kernel can run.
        """
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        tensors = q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables, out
        (num_tokens, num_heads, head_dim), (_, num_kv_heads, block_size, _) = q.shape, k_cache.shape
        num_seqs, columns = block_tables.shape
        layout = [(x.shape, x.stride(), x.dtype) for x in tensors]
        if layout != self.layout:
            triton_mode.require_triton(q.device.type)
            check_tensors(*tensors)
            self.launch = attend_launch(
                num_tokens, num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim, block_size, columns,
                itemsize=q.element_size(),
            )  # fmt: skip
            self.layout = layout
            if head_dim not in self.scratch:
                self.scratch[head_dim] = scratch_memory(head_dim, q.device)

        if not self.in_one_launch:
            store(k, v, k_cache, v_cache, slot_mapping)
        attend_kernel[self.launch.grid](
            out, *self.scratch[head_dim], q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens,
            block_tables, head_dim**-0.5 * LOG2_E, num_seqs, *out.stride()[:2], *q.stride()[:2], *k.stride()[:2],
            *v.stride()[:2], block_tables.stride(0), **self.launch.options,
            **triton_mode.pdl_options(),
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


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, query_start: Tensor,
    context_lens: Tensor, block_tables: Tensor, out: Tensor,
) -> None:  # fmt: skip
    """Raise ValueError for tensors with which a kernel would access what it must not; no value is looked at."""
    num_tokens, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, block_size, _ = k_cache.shape
    num_seqs = len(block_tables)
    if block_size != power_of_two(block_size):  # so the compiler sees which neighbours share a block
        raise ValueError(f"block_size must be a power of two for this kernel, got {block_size}")
    if num_heads % num_kv_heads:
        raise ValueError(f"q must have a multiple of the {num_kv_heads} KV heads, got {num_heads} heads")
    shapes = {
        "k": (k, (num_tokens, num_kv_heads, head_dim)), "v": (v, (num_tokens, num_kv_heads, head_dim)),
        "k_cache": (k_cache, (num_blocks, num_kv_heads, block_size, head_dim)), "v_cache": (v_cache, k_cache.shape),
        "out": (out, q.shape), "slot_mapping": (slot_mapping, (num_tokens,)),
        "query_start": (query_start, (num_seqs + 1,)), "context_lens": (context_lens, (num_seqs,)),
    }  # fmt: skip
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must be of shape {tuple(shape)}, got {tuple(tensor.shape)}")
    for name, tensor in {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "out": out}.items():
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} must be {q.dtype}, as q is, got {tensor.dtype}")
    indices = {"slot_mapping": slot_mapping, "query_start": query_start, "context_lens": context_lens}
    for name, tensor in {**indices, "block_tables": block_tables}.items():
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} must be torch.int32, got {tensor.dtype}")
    for name, tensor in {"k_cache": k_cache, "v_cache": v_cache, **indices}.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    for name, tensor in {"q": q, "k": k, "v": v, "out": out, "block_tables": block_tables}.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension, got strides {tensor.stride()}")
