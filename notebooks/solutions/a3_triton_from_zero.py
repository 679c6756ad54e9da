# --- a3.1
@triton_mode.jit
def add_kernel(out, x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))


# --- a3.2
@triton_mode.jit
def add_any_kernel(out, x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < n
    total = tl.load(x + at, mask=real) + tl.load(y + at, mask=real)
    tl.store(out + at, total, mask=real)


# --- a3.3
@triton_mode.jit
def row_sum_kernel(out, x, num_columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    values = tl.load(x + row * num_columns + column, mask=column < num_columns, other=0.0)
    tl.store(out + row, tl.sum(values, axis=0))


# --- a3.4
@triton_mode.jit
def softmax_kernel(out, x, num_columns, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    at, real = tl.program_id(0) * num_columns + column, column < num_columns
    values = tl.load(x + at, mask=real, other=float("-inf"))
    weights = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + at, weights / tl.sum(weights, axis=0), mask=real)


# --- a3.5
@triton_mode.jit
def matvec_kernel(
    out, w, x, num_rows, num_columns, stride_row, stride_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    real_row, real_column = row < num_rows, column < num_columns
    at = row[:, None] * stride_row + column[None, :] * stride_column
    tile = tl.load(w + at, mask=real_row[:, None] & real_column[None, :], other=0.0)
    vector = tl.load(x + column, mask=real_column, other=0.0)
    tl.store(out + row, tl.sum(tile * vector[None, :], axis=1), mask=real_row)


# --- a3.6
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
        values = tl.load(x + row + column, mask=real)
        tl.store(out + row + column, tl.exp(values - top) / total, mask=real)


# --- a3.7
@triton_mode.jit
def paged_scores_kernel(
    out, q, k_cache, block_table, context_len, scale,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    query = tl.load(q + dim) * scale
    index = tl.program_id(0)
    token = index * BLOCK_SIZE + slot
    cached = token < context_len
    block = tl.load(block_table + index)
    at = (block * BLOCK_SIZE + slot[:, None]) * HEAD_DIM + dim[None, :]
    keys = tl.load(k_cache + at, mask=cached[:, None], other=0.0)
    tl.store(out + token, tl.sum(query[None, :] * keys, axis=1), mask=cached)


# --- a3.8
@triton_mode.jit
def paged_attention_kernel(
    out, q, k_cache, v_cache, block_table, context_len, scale,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    query = tl.load(q + dim) * scale
    top = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for start in range(0, context_len, BLOCK_SIZE):
        cached = start + slot < context_len
        block = tl.load(block_table + start // BLOCK_SIZE)
        at = (block * BLOCK_SIZE + slot[:, None]) * HEAD_DIM + dim[None, :]
        keys = tl.load(k_cache + at, mask=cached[:, None], other=0.0)
        values = tl.load(v_cache + at, mask=cached[:, None], other=0.0)
        scores = tl.where(cached, tl.sum(query[None, :] * keys, axis=1), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        shrink, weights = tl.exp(top - new_top), tl.exp(scores - new_top)
        total = total * shrink + tl.sum(weights, axis=0)
        acc = acc * shrink + tl.sum(weights[:, None] * values, axis=0)
        top = new_top
    tl.store(out + dim, acc / total)


# --- a3.9
@triton_mode.jit
def matmul_kernel(
    out, x, w, num_rows, num_columns, num_inner,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(num_columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    real_row, real_column = (row < num_rows)[:, None], (column < num_columns)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, num_inner, INNER):
        inner = start + tl.arange(0, INNER)
        real = inner < num_inner
        x_at = row[:, None] * num_inner + inner[None, :]
        w_at = inner[:, None] * num_columns + column[None, :]
        x_tile = tl.load(x + x_at, mask=real_row & real[None, :], other=0.0)
        w_tile = tl.load(w + w_at, mask=real[:, None] & real_column, other=0.0)
        total = tl.dot(x_tile, w_tile, total, input_precision="ieee")
    at = row[:, None] * num_columns + column[None, :]
    tl.store(out + at, total, mask=real_row & real_column)
