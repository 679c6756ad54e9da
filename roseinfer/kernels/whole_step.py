"""A whole forward as one compiled function: from token ids to logits and greedy tokens, for GPT-2 and the Llama family.

Started one by one, the operations of a decode step of a small model take the host longer than the machine needs to
compute them. Here they are loops of one function, so a step is one call, and between two products nothing is allocated
by PyTorch, checked or scheduled. Numba compiles it once for each kind of weights, and keeps it on disk.

Weights come as addresses, a row of a table per layer: then one compiled function serves any number of layers. Hidden
states are float32 throughout. K and V are rounded to the pool's type, as the attention of every other step has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import carray, njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from . import quantized_numba, stored_numba  # noqa: F401  # both add their products
from .numba_calls import compiled, start_threads, told_if_slow
from .paged_numba import SUMS, as_float, exp_of_negative, write_then_attend
from .quantized_layout import LAYOUTS
from .tiled_numba import ADD, GELU, STORE, TILE, bits_of_bfloat16, factor, multiply_tiled

FEW = 16  # rows of x below which one thread does what is no product: sooner done than shared out
# Columns of the table of layers. A norm has two: the addresses of its weights and of its bias. A matrix has two: of its
# weights and of its bias. 0 for what a layer does not have.
NORM_1, NORM_2, Q_NORM, K_NORM, QKV, OUT, UP, DOWN, COLUMNS = 0, 2, 4, 5, 6, 8, 10, 12, 14
LAST_NORM, OUTPUT, ENDS = 0, 2, 4  # of the table for what comes after the layers

attention = njit(parallel=True, fastmath=SUMS)(write_then_attend)


@intrinsic
def pointer_at(typing: Any, address: types.Integer) -> tuple[Any, Callable]:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit
def floats_at(address, length):
    return carray(pointer_at(address), (length,), np.float32)


@njit
def values_at(address, length, like):
    """Return values of the model's own type, such as a norm's weights."""
    return carray(pointer_at(address), (length,), like.dtype)


def weights_at(address, num_rows, depth, kind):
    """Return W of that shape as its product reads it. It is only ever compiled, one version for each `kind`."""
    raise NotImplementedError


@overload(weights_at, inline="always")
def _weights_at(address, num_rows, depth, kind):
    if kind.dtype in LAYOUTS:
        layout, item = LAYOUTS[kind.dtype], kind.dtype.bitwidth // 8
        head, group, per_group = layout.head // item, layout.group, layout.group_bytes // item
        return lambda address, num_rows, depth, kind: carray(
            pointer_at(address), ((num_rows + TILE - 1) // TILE, head + depth // group * per_group), kind.dtype
        )
    if kind.dtype == types.int32:
        return lambda address, num_rows, depth, kind: carray(
            pointer_at(address), ((num_rows + TILE - 1) // TILE, depth // 2, TILE), np.int32
        )
    return lambda address, num_rows, depth, kind: carray(
        pointer_at(address), ((num_rows + TILE - 1) // TILE, depth, TILE), np.float32
    )


@njit
def multiply(out, x, layer, matrix, then, kind):
    """Run multiply_tiled with the matrix whose columns in `layer` begin at `matrix`."""
    w = weights_at(layer[matrix], out.shape[1], x.shape[1], kind)
    bias = floats_at(layer[matrix + 1], out.shape[1] if layer[matrix + 1] else 0)
    multiply_tiled(out, factor(x, kind), w, bias, then)


@njit(fastmath=SUMS, error_model="numpy")
def layer_norm(out, x, weight, bias, eps):
    mean, squares, size = np.float32(0), np.float32(0), np.float32(len(x))
    for i in range(len(x)):
        mean += x[i]
    mean /= size
    for i in range(len(x)):
        squares += (x[i] - mean) * (x[i] - mean)
    scale = np.float32(1) / np.sqrt(squares / size + eps)
    for i in range(len(x)):
        out[i] = (x[i] - mean) * scale * as_float(weight[i]) + as_float(bias[i])


@njit(fastmath=SUMS, error_model="numpy")
def rms_norm(out, x, weight, eps):
    squares = np.float32(0)
    for i in range(len(x)):
        squares += x[i] * x[i]
    scale = np.float32(1) / np.sqrt(squares / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = x[i] * scale * as_float(weight[i])


@njit
def norm_row(out, x, layer, column, like, eps, is_llama):
    """Normalise one row by the norm whose weights are in that column. like: an array of the model's own type."""
    weight = values_at(layer[column], len(x), like)
    if is_llama:
        rms_norm(out, x, weight, eps)
    else:
        layer_norm(out, x, weight, values_at(layer[column + 1], len(x), like), eps)


@njit(parallel=True)
def norm(out, x, layer, column, like, eps, is_llama):
    if len(x) < FEW:
        for n in range(len(x)):
            norm_row(out[n], x[n], layer, column, like, eps, is_llama)
    else:
        for n in prange(len(x)):
            norm_row(out[n], x[n], layer, column, like, eps, is_llama)


@njit(error_model="numpy")
def turn_heads(heads, num_turned, layer, num_heads, rotation, eps):
    """Normalise a token's q and k where the model has norms for them, and turn them by its position (RoPE)."""
    head_dim = heads.shape[1]
    half = head_dim // 2
    for head in range(num_turned):
        x = heads[head]
        weight = layer[Q_NORM] if head < num_heads else layer[K_NORM]
        if weight:
            rms_norm(x, x, values_at(weight, head_dim, rotation), eps)
        for i in range(half):
            a, b = x[i], x[i + half]
            cos = as_float(rotation[i])
            x[i] = a * cos + b * as_float(rotation[half + i])
            x[i + half] = b * cos + a * as_float(rotation[2 * half + i])


@njit(fastmath=SUMS, error_model="numpy")
def silu_times(out, gate_up):
    """Compute SwiGLU's second half: silu(gate) * up."""
    for i in range(len(out)):
        gate = gate_up[i]
        small = exp_of_negative(-abs(gate))
        out[i] = gate * (np.float32(1) if gate > 0 else small) / (np.float32(1) + small) * gate_up[len(out) + i]


@njit(parallel=True)
def silu_rows(out, gate_up):
    if len(out) < FEW:
        for n in range(len(out)):
            silu_times(out[n], gate_up[n])
    else:
        for n in prange(len(out)):
            silu_times(out[n], gate_up[n])


def stored(heads, pool):
    """Return heads [N, H, D] float32 in the type of the pool. It is only ever compiled."""
    raise NotImplementedError


@overload(stored)
def _stored(heads, pool):
    if pool.dtype == types.float32:
        return lambda heads, pool: heads

    def rounded(heads, pool):
        out = np.empty(heads.shape, np.int16)
        for n in range(heads.shape[0]):
            for h in range(heads.shape[1]):
                for d in range(heads.shape[2]):
                    out[n, h, d] = np.int16(bits_of_bfloat16(heads[n, h, d]))
        return out

    return rounded


@njit(parallel=True)
def choose(logits, tokens):
    """Choose the first of the largest logits of each row, -1 where the largest is not finite or any is NaN."""
    for n in prange(len(tokens)):
        row, best = logits[n], 0
        for i in range(len(row)):
            if not row[i] <= row[best]:  # larger, or one of them is NaN
                best = i
                if row[i] != row[i]:
                    break
        tokens[n] = best if np.isfinite(row[best]) else -1


def forward(
    kind, output_kind, is_llama, eps, num_heads, num_mid, layers, ends, token_table, position_table, rotation,
    token_ids, positions, slot_mapping, query_start, context_lens, block_tables, sample_rows, k_pool, v_pool, logits,
    tokens,
):  # fmt: skip
    """Compute logits [R, V] and tokens [R] of a batch as engine/batch.py has it; K and V are written to the pool.

    layers [L, COLUMNS] and ends [ENDS] int64: addresses, of the layers and of what comes after. token_table [V, C].
    position_table [P, C] of GPT-2, rotation [P, 3 D / 2] of Llama: cos, -sin, sin. k_pool, v_pool [L, blocks, H_kv,
    block_size, D]. kind, output_kind: arrays of the type that weights have in their layout, the layers' and the output
    matrix's.
    """
    num_tokens, width = len(token_ids), token_table.shape[1]
    num_kv_heads, head_dim = k_pool.shape[2], k_pool.shape[4]
    num_turned = num_heads + num_kv_heads
    x, y = np.empty((num_tokens, width), np.float32), np.empty((num_tokens, width), np.float32)
    qkv = np.empty((num_tokens, num_turned + num_kv_heads, head_dim), np.float32)
    attended = np.empty((num_tokens, num_heads, head_dim), np.float32)
    up = np.empty((num_tokens, 2 * num_mid if is_llama else num_mid), np.float32)
    mid = np.empty((num_tokens, num_mid), np.float32) if is_llama else up
    for n in range(num_tokens):
        for i in range(width):
            x[n, i] = as_float(token_table[token_ids[n], i])
        if not is_llama:
            for i in range(width):
                x[n, i] += as_float(position_table[positions[n], i])
    for i in range(len(layers)):
        layer = layers[i]
        norm(y, x, layer, NORM_1, token_table, eps, is_llama)
        multiply(qkv.reshape(num_tokens, -1), y, layer, QKV, STORE, kind)
        if is_llama:
            for n in range(num_tokens):
                turn_heads(qkv[n], num_turned, layer, num_heads, rotation[positions[n]], eps)
        heads = stored(qkv, k_pool)
        q, k, v = heads[:, :num_heads], heads[:, num_heads:num_turned], heads[:, num_turned:]
        attention(attended, q, k, v, k_pool[i], v_pool[i], slot_mapping, query_start, context_lens, block_tables)
        multiply(x, attended.reshape(num_tokens, -1), layer, OUT, ADD, kind)
        norm(y, x, layer, NORM_2, token_table, eps, is_llama)
        multiply(up, y, layer, UP, STORE if is_llama else GELU, kind)
        if is_llama:
            silu_rows(mid, up)
        multiply(x, mid, layer, DOWN, ADD, kind)
    last = np.empty((len(tokens), width), np.float32)
    for i in range(len(tokens)):
        norm_row(last[i], x[sample_rows[i]], ends, LAST_NORM, token_table, eps, is_llama)
    multiply(logits, last, ends, OUTPUT, STORE, output_kind)
    choose(logits, tokens)


@cache
def compiled_forward(weights: np.dtype, output: np.dtype, values: np.dtype) -> Callable[..., None]:
    """Return forward in machine code, in half a minute, or in seconds where it was kept on disk.

    weights, output: the types of the layers' matrices and of the output matrix in their layout. values: the type of the
    embedding tables and of the pool, as paged_numba.bits has it.
    """
    start_threads()
    kind, output_kind = (types.Array(numba.from_dtype(dtype), 1, "C") for dtype in (weights, output))
    table = types.Array(numba.from_dtype(values), 2, "C")
    pool, floats = types.Array(table.dtype, 5, "C"), types.Array(types.float32, 2, "C")
    longs, ints = types.Array(types.int64, 1, "C"), types.Array(types.int32, 1, "C")
    addresses, block_tables = types.Array(types.int64, 2, "C"), types.Array(types.int32, 2, "A")
    signature = types.void(
        kind, output_kind, types.boolean, types.float32, types.intp, types.intp, addresses, longs, table, table, table,
        longs, longs, ints, ints, ints, block_tables, longs, pool, pool, floats, longs,
    )  # fmt: skip
    with told_if_slow("compiling a step of the engine for this CPU, which is then kept on disk: about half a minute"):
        return compiled(signature)(forward)


def compile_usual() -> None:
    """Compile forward for weights in float32, with which most lessons run, and keep it. `make setup` runs this."""
    compiled_forward(*[np.dtype(np.float32)] * 3)
