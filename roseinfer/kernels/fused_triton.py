"""The products of a decode step as Triton kernels, each with what stands before and after it in a layer.

A decode step multiplies a few rows by every matrix of the model. Each product takes a GPU a few microseconds, which is
the time to read the matrix; a norm, a bias, an activation or a residual as a launch of its own takes nearly as long and
reads next to nothing. Here they belong to the product: a layer of GPT-2 is four of these launches and attention.

- linear_kernel: norm, product, then bias, GELU or SiLU, and the residual. A program computes a few columns of the
  result for all rows. Its warps share out the width of x between them, because so few rows and columns leave nothing
  else to share, and their sums are added at the end.
- add_norm_kernel, activate_kernel: what stands between two products of a library, which is faster for many rows.
- embed_kernel, rotate_kernel, choose_kernel: the rest of a step, from token ids to the likeliest tokens.

Every kernel calls gdc_wait before it reads what the launch before it wrote: see triton_mode.pdl_options. linear_kernel
and add_norm_kernel ask the L2 cache for their weights before that, so these come from memory while the launch before
still runs.
"""

from __future__ import annotations

from functools import partial as with_options
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import triton_mode
from .attention_tilings import power_of_two

tl = triton_mode.language()
SPAN = 1024  # values that a program handles at a time, where it need not be otherwise
LINE = tl and tl.constexpr(64)  # values of 16 bits in a line of a GPU's cache
# How many lines of its matrix a program asks for early: 48 KB. If each of an H200's 132 multiprocessors has two such
# programs, they ask for 13 MB, and the L2 cache of 50 MB keeps room for what the launch before still reads.
LINES_AHEAD = tl and tl.constexpr(384)
jit = with_options(triton_mode.jit, do_not_specialize=("num_rows", "num_sources"))


@jit
def gelu(x):
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # its tanh form


@jit
def prefetch(matrix, first, last, WIDTH: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, THREADS: tl.constexpr):
    """Ask the L2 cache for LINES lines of a matrix, the beginnings of ROWS rows from `first` on, and wait for none.

    last: the matrix's last row. THREADS: how many lines are asked for at a time. Before gdc_wait a weight is only asked
    for, never loaded: the launch before may have written it, and then a load could return the old values. No GPU has
    measured yet what this gains; tools/gpu_variants.py compares the step with it and without.
    """
    for at in tl.static_range(0, LINES, THREADS):
        line = at + tl.arange(0, THREADS)
        row = tl.minimum(first + line % ROWS, last).to(tl.int64)
        address = matrix + row * WIDTH + tl.minimum(line // ROWS * LINE, WIDTH - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; // $0", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
        )


@jit
def linear_kernel(
    out, x, weight, bias, norm_weight, norm_sums, residual, num_rows, eps,
    NUM_OUT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr, CHUNK: tl.constexpr,
    PARTS: tl.constexpr, STAGES: tl.constexpr, NORM: tl.constexpr, THEN: tl.constexpr, UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute OUT columns of ROWS rows in each program.

    CHUNK: how much of the width is read at a time. PARTS: the pieces of a chunk, one for each warp. NORM: "", "layer"
    or "rms". A norm costs no pass of its own over x, because what it does to a whole row can be done to the sums:

        ((x - mean) / deviation * g + b) @ W.T  =  (x * g @ W.T - mean * g @ W.T) / deviation + b @ W.T

    norm_sums [NUM_OUT]: g @ W.T. The bias has b @ W.T in it.
    """
    column = tl.program_id(0) * OUT + tl.arange(0, OUT)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    k_first = tl.arange(0, PARTS)[:, None] * (CHUNK // PARTS) + tl.arange(0, CHUNK // PARTS)[None, :]
    real_row, real_column = row < num_rows, column < NUM_OUT
    if PDL:
        threads: tl.constexpr = 32 * PARTS
        width_lines: tl.constexpr = (WIDTH + LINE - 1) // LINE
        lines: tl.constexpr = min(OUT * width_lines, LINES_AHEAD // (2 if THEN == "silu" else 1))
        at_column, last = tl.program_id(0) * OUT, NUM_OUT - 1
        prefetch(weight, at_column, last, WIDTH, OUT, lines, threads)
        if THEN == "silu":
            prefetch(weight + NUM_OUT * WIDTH, at_column, last, WIDTH, OUT, lines, threads)
        if NORM != "":
            prefetch(norm_weight, 0, 0, WIDTH, 1, width_lines, threads)
        if NORM == "layer":
            prefetch(norm_sums, at_column, last, 1, OUT, OUT, threads)
        if bias is not None:
            prefetch(bias, at_column, last, 1, OUT, OUT, threads)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # 1. Load what follows the product, which arrives while the sums are made.
    to = row[:, None].to(tl.int64) * NUM_OUT + column[None, :]
    real_out = real_row[:, None] & real_column[None, :]
    if NORM == "layer":
        column_sums = tl.load(norm_sums + column, mask=real_column, other=0.0)
    if bias is not None:
        shift = tl.load(bias + column, mask=real_column, other=0.0)
    if residual is not None:
        added = tl.load(residual + to, mask=real_out, other=0.0)
    # 2. Sums over the width: of products, [PARTS, ROWS, OUT], of x and of its squares.
    first = tl.zeros([PARTS, ROWS, OUT], tl.float32)
    second = first
    sums = tl.zeros([PARTS, ROWS, CHUNK // PARTS], tl.float32)
    squares = sums
    for at in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
        k = at + k_first
        inside = k < WIDTH
        real = real_row[None, :, None] & inside[:, None, :]
        values = tl.load(x + row[None, :, None].to(tl.int64) * WIDTH + k[:, None, :], mask=real, other=0.0)
        if UPCAST:
            values = values.to(tl.float32)
        if NORM != "":
            exact = values.to(tl.float32)
            squares += exact * exact
            if NORM == "layer":
                sums += exact
            values = values * tl.load(norm_weight + k, mask=inside, other=0.0)[:, None, :]
        at_weight = weight + column[None, None, :].to(tl.int64) * WIDTH + k[:, :, None]
        there = real_column[None, None, :] & inside[:, :, None]
        matrix = tl.load(at_weight, mask=there, other=0.0)
        if UPCAST:
            matrix = matrix.to(tl.float32)
        first = tl.dot(values, matrix, first, input_precision="ieee")
        if THEN == "silu":
            matrix = tl.load(at_weight + NUM_OUT * WIDTH, mask=there, other=0.0)
            if UPCAST:
                matrix = matrix.to(tl.float32)
            second = tl.dot(values, matrix, second, input_precision="ieee")
    # 3. What follows the product.
    result = tl.sum(first, axis=0)
    scale = tl.full([ROWS], 1.0, tl.float32)
    if NORM != "":
        variance = tl.sum(tl.sum(squares, axis=2), axis=0) / WIDTH
        if NORM == "layer":
            mean = tl.sum(tl.sum(sums, axis=2), axis=0) / WIDTH
            variance = tl.maximum(variance - mean * mean, 0.0)
            result -= mean[:, None] * column_sums[None, :]
        scale = tl.rsqrt(variance + eps)
        result *= scale[:, None]
    if bias is not None:
        result += shift.to(tl.float32)[None, :]
    if THEN == "gelu":
        result = gelu(result)
    if THEN == "silu":
        result = result * tl.sigmoid(result) * tl.sum(second, axis=0) * scale[:, None]
    if residual is not None:
        result += added.to(tl.float32)
    tl.store(out + to, result.to(out.dtype.element_ty), mask=real_out)


@jit
def embed_kernel(
    out, token_ids, positions, table, position_table, sources, last_tokens, num_sources,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Look up the row of one token in each program, and add its position's row where the model has a table of them.

    A token with a source is taken from there, and written to token_ids. Then its source is forgotten, so that a step
    that is computed again finds the same token.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    token = tl.load(token_ids + row)
    source = tl.load(sources + row, mask=row < num_sources, other=-1)
    is_taken = source >= 0
    taken = tl.load(last_tokens + source, mask=is_taken, other=0)
    token = tl.where(is_taken, tl.maximum(taken, 0), token)  # below 0: of a row that is not finite
    tl.debug_barrier()  # each warp has read token and source before one of them writes there
    tl.store(token_ids + row, token, mask=is_taken)
    tl.store(sources + row, -1, mask=is_taken)
    for at in range(0, WIDTH, SPAN):
        k = at + tl.arange(0, SPAN)
        values = tl.load(table + token * WIDTH + k, mask=k < WIDTH)
        if position_table is not None:
            added = tl.load(position_table + tl.load(positions + row) * WIDTH + k, mask=k < WIDTH)
            values = (values.to(tl.float32) + added.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(out + row.to(tl.int64) * WIDTH + k, values, mask=k < WIDTH)


@jit
def rotate_kernel(
    qkv, positions, rotation, q_norm, k_norm, eps,
    NUM_HEADS: tl.constexpr, NUM_TURNED: tl.constexpr, NUM_ALL: tl.constexpr, HALF: tl.constexpr,
    HALF_PAD: tl.constexpr, HEADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalise (where the model does) and turn HEADS heads of one token, q and k, in place.

    rotation [P, 3 HALF]: cos, -sin and sin of each position. Numbers i and i + HALF of a head are turned together.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    i = tl.arange(0, HALF_PAD)[None, :]
    real = (head < NUM_TURNED) & (i < HALF)
    at = qkv + (row * NUM_ALL + head).to(tl.int64) * 2 * HALF + i
    a, b = tl.load(at, mask=real, other=0.0).to(tl.float32), tl.load(at + HALF, mask=real, other=0.0).to(tl.float32)
    if q_norm is not None:
        scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * HALF) + eps)[:, None]
        is_q = real & (head < NUM_HEADS)
        is_k = real & (head >= NUM_HEADS)
        whole = tl.zeros([HEADS, 1], tl.int32)  # gives the pointers a row for each head, as their masks have
        w_a = tl.load(q_norm + whole + i, mask=is_q, other=0.0) + tl.load(k_norm + whole + i, mask=is_k, other=0.0)
        w_b = tl.load(q_norm + HALF + whole + i, mask=is_q, other=0.0)
        w_b += tl.load(k_norm + HALF + whole + i, mask=is_k, other=0.0)
        a, b = a * scale * w_a.to(tl.float32), b * scale * w_b.to(tl.float32)
    turn = rotation + tl.load(positions + row) * 3 * HALF + i
    cos = tl.load(turn, mask=i < HALF, other=0.0).to(tl.float32)
    sin = tl.load(turn + 2 * HALF, mask=i < HALF, other=0.0).to(tl.float32)
    tl.store(at, (a * cos - b * sin).to(qkv.dtype.element_ty), mask=real)
    tl.store(at + HALF, (b * cos + a * sin).to(qkv.dtype.element_ty), mask=real)


@jit
def add_norm_kernel(
    out, total, x, y, weight, bias, eps, WIDTH: tl.constexpr, PAD: tl.constexpr, CENTERED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Add rows of x and y, where there is a y, and normalise the sum: one row in each program."""
    if PDL:
        lines: tl.constexpr = (WIDTH + LINE - 1) // LINE
        prefetch(weight, 0, 0, WIDTH, 1, lines, 32)
        if bias is not None:
            prefetch(bias, 0, 0, WIDTH, 1, lines, 32)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    k = tl.arange(0, PAD)
    real = k < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + k
    # Loaded first, weight and bias arrive while the row is summed.
    gain = tl.load(weight + k, mask=real, other=0.0).to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + k, mask=real, other=0.0).to(tl.float32)
    values = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    if y is not None:
        values += tl.load(y + at, mask=real, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=real)
        values = rounded.to(tl.float32)
    if CENTERED:
        values = tl.where(real, values - tl.sum(values, axis=0) / WIDTH, 0.0)
    values *= tl.rsqrt(tl.sum(values * values, axis=0) / WIDTH + eps)
    values *= gain
    if bias is not None:
        values += shift
    tl.store(out + at, values.to(out.dtype.element_ty), mask=real)


@jit
def activate_kernel(out, x, num_values, WIDTH: tl.constexpr, THEN: tl.constexpr, SPAN: tl.constexpr, PDL: tl.constexpr):
    """Compute GELU (its tanh form), or SiLU of a row's first half times its second. WIDTH: of a row of the result."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    real = at < num_values
    if THEN == "gelu":
        values = gelu(tl.load(x + at, mask=real, other=0.0).to(tl.float32))
    else:
        from_x = at + at // WIDTH * WIDTH
        gate = tl.load(x + from_x, mask=real, other=0.0).to(tl.float32)
        values = gate * tl.sigmoid(gate) * tl.load(x + from_x + WIDTH, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=real)


@jit
def choose_kernel(tokens, logits, NUM_LOGITS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, PDL: tl.constexpr):
    """Choose the first of the largest logits of one row, -1 where the largest is not finite or any is NaN.

    All WIDTH values of a row are read, and those after NUM_LOGITS left out: a mask of 50,257 would forbid wide loads.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    best, index = tl.full([SPAN], float("-inf"), tl.float32), tl.zeros([SPAN], tl.int32)
    for at in tl.range(0, NUM_LOGITS, SPAN, num_stages=4):
        k = at + tl.arange(0, SPAN)
        values = tl.load(logits + row.to(tl.int64) * WIDTH + k, mask=k < WIDTH, other=float("-inf"))
        values = tl.where(k < NUM_LOGITS, values.to(tl.float32), float("-inf"))
        values = tl.where(values == values, values, float("inf"))
        index = tl.where(values > best, k, index)
        best = tl.maximum(best, values)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, index, NUM_LOGITS), axis=0)
    is_finite = (top > float("-inf")) & (top < float("inf"))
    tl.store(tokens + row, tl.where(is_finite, first, -1).to(tl.int64))


class Matrix(NamedTuple):
    """A matrix with the norm in front of it, as linear_kernel takes them.

    weight [M, K] as it is in the model; bias [M], with the norm's bias through the matrix in it, or None. norm: "",
    "layer" or "rms", its weights [K], and their sums through the matrix [M].
    """

    weight: Tensor
    bias: Tensor | None
    norm: str = ""
    norm_weight: Tensor | None = None
    norm_sums: Tensor | None = None
    eps: float = 0.0


@torch.no_grad()
def matrix_of(linear: Any, norm: Any = None) -> Matrix:
    """Return the matrix of a layer, and what a norm before it comes to in its sums."""
    weight, bias = linear.weight, getattr(linear, "bias", None)
    if norm is None:
        return Matrix(weight, bias)
    if isinstance(norm, nn.RMSNorm):
        return Matrix(weight, bias, "rms", norm.weight, None, float(norm.eps or 0))
    exact = weight.float()
    shift = exact @ norm.bias.float()
    bias = shift if bias is None else shift + bias.float()
    return Matrix(weight, bias, "layer", norm.weight, exact @ norm.weight.float(), norm.eps)


def linear_shape(num_rows: int, num_out: int, width: int) -> dict[str, int]:
    """Cut a product into programs: linear_kernel's constexprs and its warps, as an H200 was fastest with them."""
    out, parts, chunk, stages = 32, 4, 256, 3
    if num_out <= 1024:  # so few columns that a program has 8 of them: then most multiprocessors have one
        out, parts, chunk, stages = (8, 8, 512, 4) if width > 1024 else (8, 4, 256, 4)
    if num_rows > 16:
        out, parts = 16, 8
    chunk = max(16 * parts, min(chunk, width & -width))  # a divisor of the width needs no mask
    rows = max(16, power_of_two(num_rows))  # a tensor core takes 16 at least
    return {"ROWS": rows, "OUT": out, "CHUNK": chunk, "PARTS": parts, "STAGES": stages, "num_warps": parts}


def linear(x: Tensor, matrix: Matrix, residual: Tensor | None = None, then: str = "") -> Tensor:
    """Return then(norm(x) @ weight.T + bias) + residual, [N, M] in x's dtype; x [N, K]."""
    if x.is_cuda and x.element_size() != 2:  # no tensor core multiplies them exactly, and a library is faster
        raise ValueError(f"x must have 16 bits on a GPU, got {x.dtype}")
    if then == "silu" and matrix.bias is not None:
        raise ValueError("then='silu' must have a matrix without a bias, and a norm without one")
    num_rows, width = x.shape
    num_out = len(matrix.weight) // (2 if then == "silu" else 1)
    out = torch.empty((num_rows, num_out), dtype=x.dtype, device=x.device)
    shape = linear_shape(num_rows, num_out, width)
    linear_kernel[-(-num_out // shape["OUT"]), -(-num_rows // shape["ROWS"])](
        out, x, matrix.weight, matrix.bias, matrix.norm_weight, matrix.norm_sums, residual, num_rows,
        matrix.eps, NUM_OUT=num_out, WIDTH=width, NORM=matrix.norm, THEN=then,
        UPCAST=int(triton_mode.MODE == "interpret"), **shape, **triton_mode.pdl_options(),
    )  # fmt: skip
    return out


def add_norm(x: Tensor, norm: Any, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return x + y (x itself without a y) and its norm, both like x [N, C]."""
    total, out = x if y is None else torch.empty_like(x), torch.empty_like(x)
    width = x.size(1)
    add_norm_kernel[(len(x),)](
        out, total, x, y, norm.weight, getattr(norm, "bias", None), norm.eps, WIDTH=width, PAD=power_of_two(width),
        CENTERED=isinstance(norm, nn.LayerNorm), num_warps=min(16, max(1, power_of_two(width) // 256)),
        **triton_mode.pdl_options(),
    )  # fmt: skip
    return total, out


def activate(x: Tensor, then: str) -> Tensor:
    """Return GELU of x [N, M], or with then="silu" SiLU of its first half times its second, [N, M / 2]."""
    width = x.size(1) // (2 if then == "silu" else 1)
    out = torch.empty((len(x), width), dtype=x.dtype, device=x.device)
    activate_kernel[(-(-out.numel() // SPAN),)](
        out, x, out.numel(), WIDTH=width, THEN=then, SPAN=SPAN, **triton_mode.pdl_options()
    )
    return out


def embed(
    token_ids: Tensor, positions: Tensor, table: Tensor, position_table: Tensor | None, sources: Tensor,
    last_tokens: Tensor,
) -> Tensor:  # fmt: skip
    """Return table[token_ids] [N, C], plus position_table[positions] where there is one.

    sources: int64 [B], for each of the first tokens the place in last_tokens that it is taken from, which then becomes
    -1, or -1. last_tokens: int64; a token below 0 counts as 0.
    """
    width = table.size(1)
    out = torch.empty((len(token_ids), width), dtype=table.dtype, device=table.device)
    embed_kernel[(len(token_ids),)](
        out, token_ids, positions, table, position_table, sources, last_tokens, len(sources), WIDTH=width, SPAN=SPAN,
        **triton_mode.pdl_options(),
    )  # fmt: skip
    return out


def rotate_in_place(
    qkv: Tensor, positions: Tensor, table: Tensor, num_heads: int, num_kv_heads: int, q_norm: Any, k_norm: Any
) -> None:  # fmt: skip
    """Normalise q and k in qkv [N, H + 2 H_kv, D], where there are norms, and turn them by positions [N].

    table [P, 3 D / 2]: from Rotation.table_for. q_norm, k_norm: of each head, nn.RMSNorm or None.
    """
    num_rows, num_all, head_dim = qkv.shape
    num_turned = num_heads + num_kv_heads
    weights = (q_norm.weight, k_norm.weight, q_norm.eps) if q_norm else (None, None, 0.0)
    rotate_kernel[(num_rows, -(-num_turned // 4))](
        qkv, positions, table, *weights, NUM_HEADS=num_heads, NUM_TURNED=num_turned, NUM_ALL=num_all,
        HALF=head_dim // 2, HALF_PAD=power_of_two(head_dim // 2), HEADS=4, **triton_mode.pdl_options(),
    )  # fmt: skip


def choose(logits: Tensor, tokens: Tensor) -> Tensor:
    """Write the first of the largest of each row of logits [R, V] to tokens [R], and return these.

    A row whose largest is not finite gets NO_TOKEN. The rows may be the beginnings of wider ones, which are read whole.
    """
    choose_kernel[(len(logits),)](
        tokens, logits, NUM_LOGITS=logits.size(1), WIDTH=logits.stride(0), SPAN=8 * SPAN, num_warps=16,
        **triton_mode.pdl_options(),
    )  # fmt: skip
    return tokens
