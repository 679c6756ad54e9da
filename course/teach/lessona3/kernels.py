"""Reference kernels of a3: the copy that the notebook shows, and one for each rung. Each is launched by its Rung."""

from __future__ import annotations

from roseinfer.kernels import triton_mode

tl = triton_mode.language()


@triton_mode.jit
def copy_kernel(out, x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@triton_mode.jit
def add_kernel(out, x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))


@triton_mode.jit
def add_any_kernel(out, x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < n
    total = tl.load(x + at, mask=real) + tl.load(y + at, mask=real)
    tl.store(out + at, total, mask=real)


@triton_mode.jit
def row_sum_kernel(out, x, num_columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    values = tl.load(x + row * num_columns + column, mask=column < num_columns, other=0.0)
    tl.store(out + row, tl.sum(values, axis=0))


@triton_mode.jit
def softmax_kernel(out, x, num_columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    at, real = row * num_columns + column, column < num_columns
    values = tl.load(x + at, mask=real, other=float("-inf"))
    weights = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + at, weights / tl.sum(weights, axis=0), mask=real)


@triton_mode.jit
def matvec_kernel(
    out, w, x, num_rows, num_columns, stride_row, stride_column, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    real_row, real_column = row < num_rows, column < num_columns
    at = row[:, None] * stride_row + column[None, :] * stride_column
    tile = tl.load(w + at, mask=real_row[:, None] & real_column[None, :], other=0.0)
    vector = tl.load(x + column, mask=real_column, other=0.0)
    tl.store(out + row, tl.sum(tile * vector[None, :], axis=1), mask=real_row)


@triton_mode.jit
def long_softmax_kernel(out, x, num_columns, TILE: tl.constexpr):
    row = tl.program_id(0) * num_columns
    top = float("-inf")
    total = 0.0
    for start in range(0, num_columns, TILE):
        column = start + tl.arange(0, TILE)
        values = tl.load(x + row + column, mask=column < num_columns, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(values, axis=0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(values - new_top), axis=0)
        top = new_top
    for start in range(0, num_columns, TILE):
        column = start + tl.arange(0, TILE)
        real = column < num_columns
        values = tl.load(x + row + column, mask=real, other=float("-inf"))
        tl.store(out + row + column, tl.exp(values - top) / total, mask=real)


@triton_mode.jit
def paged_scores_kernel(
    out, q, k_cache, block_table, context_len, scale, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr
):  # fmt: skip
    index = tl.program_id(0)
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    query = tl.load(q + dim) * scale
    block = tl.load(block_table + index)
    token = index * BLOCK_SIZE + slot
    cached = token < context_len
    at = (block * BLOCK_SIZE + slot[:, None]) * HEAD_DIM + dim[None, :]
    keys = tl.load(k_cache + at, mask=cached[:, None], other=0.0)
    tl.store(out + token, tl.sum(query[None, :] * keys, axis=1), mask=cached)


@triton_mode.jit
def paged_attention_kernel(
    out, q, k_cache, v_cache, block_table, context_len, scale, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr
):  # fmt: skip
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    query = tl.load(q + dim) * scale
    top = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for start in range(0, context_len, BLOCK_SIZE):
        block = tl.load(block_table + start // BLOCK_SIZE)
        cached = start + slot < context_len
        at = (block * BLOCK_SIZE + slot[:, None]) * HEAD_DIM + dim[None, :]
        keys = tl.load(k_cache + at, mask=cached[:, None], other=0.0)
        values = tl.load(v_cache + at, mask=cached[:, None], other=0.0)
        scores = tl.where(cached, tl.sum(query[None, :] * keys, axis=1), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        shrink = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * shrink + tl.sum(weights, axis=0)
        acc = acc * shrink + tl.sum(weights[:, None] * values, axis=0)
        top = new_top
    tl.store(out + dim, acc / total)
