"""Attention over flat batches as Triton kernels: write K and V, then attend; split and combined where a batch is small.

- store_kernel writes the new tokens' K and V to their slots. It is a launch of its own because a grid has no barrier: a
  token of a chunk sees the ones before it, which another program may not have written yet. Launches on one stream run
  one after another, and that is the barrier. (A batch of decodes alone could do without, as stage 07's kernel does. One
  way for every batch is worth the launch, which a graph replays without the host.)
- attend_kernel: a program serves one KV head and a tile of query rows, which are the query heads on that head (GQA) of
  one token, or of a few neighbouring tokens of a chunk. Whatever it loads of K and V serves all of its rows.
- combine_kernel: a small batch has few programs, and if each of them walks 32,768 tokens, most of the GPU is idle. Then
  the tokens that a tile sees are split among several programs, whose results are weighted and added here.

What is launched follows from shapes alone, never from values on the device: no sync, and a CUDA graph that was captured
with one set of lengths is right for all. Lengths are read in the kernels: there a program finds out what it has to do.

Online softmax: Milakov and Gimelshein, 2018. Block tables: Kwon et al., "PagedAttention", 2023. Tiles: Dao et al.,
"FlashAttention", 2022. Splits: Dao et al., "Flash-Decoding", 2023.
"""

from __future__ import annotations

from functools import partial as with_options

import torch
from torch import Tensor

from . import triton_mode

tl = triton_mode.language()

LOG2_E = 1.4426950408889634  # exp(x) is exp2(x * LOG2_E), and exp2 is what a GPU has an instruction for
PROGRAMS = 256  # about two for each of the 108 or 132 multiprocessors of an A100 or H100: fewer leave some idle
SPLIT_TOKENS = 256  # a split that has less to do costs more than it saves
MOST_SPLITS = 64  # combine_kernel holds the results of all splits at once
# These differ from step to step, and none of them is worth a step that waits for the compiler.
jit = with_options(triton_mode.jit, do_not_specialize=("num_rows", "num_seqs", "table_row"))


@jit
def store_kernel(
    k, v, k_cache, v_cache, slot_mapping, num_rows,
    k_token, k_head, v_token, v_head,  # strides, in elements
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Copy ROWS rows of HEAD_DIM values in each program; row r is head r % NUM_KV_HEADS of token r // NUM_KV_HEADS."""
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
    out, partial, tops, totals, q, k_cache, v_cache, query_start, context_lens, block_tables,
    scale, num_seqs,
    out_token, out_head, q_token, q_head, table_row,  # strides, in elements
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE_TOKENS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Attend from query tile program_id(0) on KV head program_id(1) to split program_id(2) of its cached tokens.

    A program has ROWS rows of queries: row r is query head r % GROUP of the tile's token r // GROUP, up to TILE_TOKENS
    tokens. It reads TILE cached tokens at a time. TILE_TOKENS is 1 for a batch of decodes, and then a tile is a
    sequence.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if TILE_TOKENS == 1:
        seq, first = tile, 0
    else:
        seq = sequence_of(tile, query_start, num_seqs, TILE_TOKENS)
        first = (tile - tl.load(query_start + seq) // TILE_TOKENS - seq) * TILE_TOKENS
    start = tl.load(query_start + seq)
    num_new = tl.load(query_start + seq + 1) - start
    if first >= num_new:  # a tile too many
        return
    num_cached = tl.load(context_lens + seq) - num_new  # before this step
    end = num_cached + tl.minimum(first + TILE_TOKENS, num_new)  # the tile's last token sees the tokens before this one

    row = tl.arange(0, ROWS)
    token = first + row // GROUP
    position = num_cached + token
    head = kv_head * GROUP + row % GROUP
    real_row = (row < TILE_TOKENS * GROUP) & (token < num_new)
    dim = tl.arange(0, DIM_PAD)[None, :]
    real = real_row[:, None] & (dim < HEAD_DIM)
    query = tl.load(q + (start + token)[:, None] * q_token + head[:, None] * q_head + dim, mask=real, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    # Whole tiles to each split, as evenly as they come. A short context leaves the last splits without any.
    split_tokens = tl.cdiv(tl.cdiv(end, TILE), SPLITS) * TILE
    low = split * split_tokens
    high = tl.minimum(low + split_tokens, end)

    top = tl.full([ROWS], float("-inf"), tl.float32)  # the largest score so far, in powers of two
    total = tl.zeros([ROWS], tl.float32)  # sum of exp2(score - top)
    acc = tl.zeros([ROWS, DIM_PAD], tl.float32)  # sum of exp2(score - top) * value
    for at in range(low, high, TILE):
        seen = at + tl.arange(0, TILE)
        # Slots from `end` on may hold anything: they are not loaded, for 0 times NaN is NaN. Those before it are
        # written, also where a row does not see them.
        written = seen < end
        block = tl.load(block_tables + seq * table_row + seen // BLOCK_SIZE, mask=written, other=0).to(tl.int64)
        cache_row = (block * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + seen % BLOCK_SIZE
        readable = written[:, None] & (dim < HEAD_DIM)
        keys = tl.load(k_cache + cache_row[:, None] * HEAD_DIM + dim, mask=readable, other=0.0)
        values = tl.load(v_cache + cache_row[:, None] * HEAD_DIM + dim, mask=readable, other=0.0)
        if UPCAST:  # the interpreter computes bf16 products and sums wrongly
            keys, values = keys.to(tl.float32), values.to(tl.float32)

        if ROWS == 1:  # a tensor core takes 16 rows at least, and 15 of them would be padding
            scores = tl.sum(query.to(tl.float32) * keys.to(tl.float32), axis=1)[None, :]
        else:
            # "ieee": fp32 is not rounded to tf32. 16-bit products are exact in any case; all sums are fp32.
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        scores = tl.where(seen[None, :] <= position[:, None], scores * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        # Slot 0 is seen by every row, so top is finite from the first tile on; but a later split may hold nothing that
        # the first tokens of a chunk see, and -inf - -inf is NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top) if SPLITS > 1 else new_top
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)  # what was summed up against the old top
        total = total * shrink + tl.sum(weights, axis=1)
        if ROWS == 1:
            new = tl.sum(tl.trans(weights) * values.to(tl.float32), axis=0)[None, :]
        else:
            new = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        acc = acc * shrink[:, None] + new
        top = new_top

    if SPLITS == 1:
        to = out + (start + token)[:, None] * out_token + head[:, None] * out_head + dim
        tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)
    else:
        # Not divided yet: where a row saw nothing, top is -inf, total 0 and acc 0, which count for nothing.
        to = ((start + token) * NUM_KV_HEADS * GROUP + head) * SPLITS + split
        tl.store(partial + to[:, None] * HEAD_DIM + dim, acc, mask=real)
        tl.store(tops + to, top, mask=real_row)
        tl.store(totals + to, total, mask=real_row)


@jit
def combine_kernel(
    out, partial, tops, totals, num_rows,
    out_token, out_head,  # strides, in elements
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Weight and add the splits of ROWS rows in each program; row r is head r % NUM_HEADS of token r // NUM_HEADS."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real_row = (row < num_rows)[:, None]
    dim = tl.arange(0, DIM_PAD)[None, :]
    real = real_row & (dim < HEAD_DIM)
    at = row[:, None] * SPLITS + tl.arange(0, SPLITS)[None, :]  # [ROWS, SPLITS]
    top = tl.load(tops + at, mask=real_row, other=0.0)
    total = tl.load(totals + at, mask=real_row, other=1.0)
    acc = tl.load(partial + at[:, :, None] * HEAD_DIM + dim[None, :, :], mask=real[:, None, :], other=0.0)
    weight = tl.exp2(top - tl.max(top, axis=1)[:, None])
    result = tl.sum(acc * weight[:, :, None], axis=1) / tl.sum(total * weight, axis=1)[:, None]
    to = out + (row // NUM_HEADS)[:, None] * out_token + (row % NUM_HEADS)[:, None] * out_head + dim
    tl.store(to, result.to(out.dtype.element_ty), mask=real)


def store_shape(num_kv_heads: int, head_dim: int, block_size: int) -> dict[str, int]:
    """Return store_kernel's constexprs."""
    dim_pad = power_of_two(head_dim)
    return {
        "NUM_KV_HEADS": num_kv_heads, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad, "BLOCK_SIZE": block_size,
        "ROWS": max(1, 2048 // dim_pad),
    }  # fmt: skip


def attend_shape(
    num_tokens: int, num_seqs: int, num_kv_heads: int, group: int, head_dim: int, block_size: int, columns: int,
    itemsize: int,
) -> dict[str, int]:  # fmt: skip
    """Cut a batch into programs, from shapes alone: attend_kernel's constexprs and its warps.

    num_tokens, num_seqs: of the batch; if they are equal, each sequence brings one token. columns: of the block tables.
    itemsize: bytes of a value. Sizes are such that no program spills its registers to memory (`roseinfer aot`).
    """
    dim_pad = max(16, power_of_two(head_dim))  # no side of what tl.dot multiplies may be shorter
    tile = max(16, 8192 // (dim_pad * itemsize))
    if num_tokens == num_seqs:
        rows = 1 if group == 1 else max(16, power_of_two(group))
        tile_tokens, tile = 1, min(64, tile)
    else:
        rows = max(2 * power_of_two(group), 128 // itemsize)
        tile_tokens, tile = rows // group, min(32, tile)
    programs = query_tiles(num_tokens, num_seqs, tile_tokens) * num_kv_heads
    splits = max(1, min(PROGRAMS // programs, columns * block_size // SPLIT_TOKENS, MOST_SPLITS))
    # Tensor cores multiply 16-bit values; a product of fp32 needs all its values in registers, so more threads.
    values_of_4_warps = 8192 if itemsize == 2 else 1024
    return {
        "NUM_KV_HEADS": num_kv_heads, "GROUP": group, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad,
        "BLOCK_SIZE": block_size, "ROWS": rows, "TILE_TOKENS": tile_tokens, "TILE": tile,
        "SPLITS": 1 << splits.bit_length() - 1,  # the power of two that is not above
        "UPCAST": int(triton_mode.MODE == "interpret"), "num_warps": 8 if rows * dim_pad > values_of_4_warps else 4,
    }  # fmt: skip


def query_tiles(num_tokens: int, num_seqs: int, tile_tokens: int) -> int:
    """Return the number of tiles of the grid for the new tokens: as many as any lengths may need, see sequence_of."""
    return num_seqs if tile_tokens == 1 else num_tokens // tile_tokens + num_seqs


def combine_shape(num_heads: int, head_dim: int, splits: int) -> dict[str, int]:
    """Return combine_kernel's constexprs."""
    dim_pad = power_of_two(head_dim)
    return {
        "NUM_HEADS": num_heads, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad, "SPLITS": splits,
        "ROWS": max(1, 4096 // (splits * dim_pad)),
    }  # fmt: skip


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below n; the sides of a Triton tile are powers of two."""
    return 1 << (n - 1).bit_length()


def paged_attention_triton(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, query_start: Tensor,
    context_lens: Tensor, block_tables: Tensor, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Write K and V of N new tokens to the pool, then attend; [N, H, D] in q's dtype, or `out`, filled.

    q [N, H, D]; k, v [N, H_kv, D] of the new tokens of B sequences, which lie one after another. k_cache, v_cache
    [num_blocks, H_kv, block_size, D], contiguous, block_size a power of two. slot_mapping [N]: block * block_size +
    offset of each new token. query_start [B + 1]: tokens query_start[i] to query_start[i + 1] belong to sequence i, one
    at least. context_lens [B]: tokens of each sequence, the new ones included. block_tables [B, W]: block ids in token
    order; those after the last used one are ignored. All four int32.

    Two launches, three for a batch whose contexts are split; which ones depends on shapes alone. Sums are fp32; with
    16-bit tensors the softmax's weights are rounded to 16 bits, too, where tensor cores multiply them.

    Raises ValueError for tensors that the kernels cannot read, TritonUnavailable where no kernel can run.
    """
    triton_mode.require_triton(q.device.type)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    check_tensors(q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables, out)
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    num_seqs, columns = block_tables.shape

    shape = store_shape(num_kv_heads, head_dim, block_size)
    num_rows = num_tokens * num_kv_heads
    store_kernel[(-(-num_rows // shape["ROWS"]),)](
        k, v, k_cache, v_cache, slot_mapping, num_rows, *k.stride()[:2], *v.stride()[:2], **shape
    )

    group = num_heads // num_kv_heads
    shape = attend_shape(
        num_tokens, num_seqs, num_kv_heads, group, head_dim, block_size, columns, itemsize=q.element_size()
    )
    splits, tiles = shape["SPLITS"], query_tiles(num_tokens, num_seqs, shape["TILE_TOKENS"])
    num_rows = num_tokens * num_heads
    partial = tops = totals = out  # not touched without splits
    if splits > 1:
        partial = torch.empty((num_rows, splits, head_dim), dtype=torch.float32, device=q.device)
        tops, totals = torch.empty((2, num_rows, splits), dtype=torch.float32, device=q.device)
    attend_kernel[(tiles, num_kv_heads, splits)](
        out, partial, tops, totals, q, k_cache, v_cache, query_start, context_lens, block_tables,
        head_dim**-0.5 * LOG2_E, num_seqs, *out.stride()[:2], *q.stride()[:2], block_tables.stride(0), **shape,
    )  # fmt: skip

    if splits > 1:
        shape = combine_shape(num_heads, head_dim, splits)
        combine_kernel[(-(-num_rows // shape["ROWS"]),)](
            out, partial, tops, totals, num_rows, *out.stride()[:2], **shape
        )
    return out


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
