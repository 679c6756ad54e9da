"""A whole forward as one compiled function: from token ids to logits and greedy tokens, for GPT-2 and the Llama family.

Started one by one, the operations of a decode step of a small model take the host longer than the machine needs to
compute them. Here they are loops of one function, so a step is one call, and between two products nothing is allocated
by PyTorch, checked or scheduled. Numba compiles it once for each kind of weights, and keeps it on disk.

Weights come as addresses (layer_table.py). What a layer computes of each token alone is in rows_numba.py. Hidden
states are float32 throughout. K and V are rounded to the pool's type, as the attention of every other step has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numba
import numpy as np
from numba import njit, prange, types

from .layer_table import DOWN, LAST_NORM, NORM_1, NORM_2, OUT, OUTPUT, QKV, UP, multiply
from .numba_calls import compiled, start_threads, told_if_slow
from .paged_numba import SUMS, as_float, write_then_attend
from .rows_numba import norm, norm_row, read_row, silu_rows, stored, turn_heads
from .tiled_numba import ADD, GELU, STORE

attention = compiled(parallel=True, fastmath=SUMS)(write_then_attend)


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
    kind, output_kind, is_llama, eps, num_heads, num_mid, layers, ends, token_table, width, position_table, rotation,
    token_ids, positions, slot_mapping, query_start, context_lens, block_tables, sample_rows, k_pool, v_pool, logits,
    tokens,
):  # fmt: skip
    """Compute logits [R, V] and tokens [R] of a batch as engine/batch.py has it; K and V are written to the pool.

    layers [L, COLUMNS] and ends [ENDS] int64: addresses, of the layers and of what comes after. token_table: [V, C], or
    in tiles of a GGUF file's blocks. width: C. position_table [P, C] of GPT-2, rotation [P, 3 D / 2] of Llama: cos,
    -sin, sin. k_pool, v_pool [L, blocks, H_kv, block_size, D]. kind, output_kind: arrays of the type that weights have
    in their layout, the layers' and the output matrix's.
    """
    num_tokens = len(token_ids)
    num_kv_heads, head_dim = k_pool.shape[2], k_pool.shape[4]
    num_turned = num_heads + num_kv_heads
    x, y = np.empty((num_tokens, width), np.float32), np.empty((num_tokens, width), np.float32)
    qkv = np.empty((num_tokens, num_turned + num_kv_heads, head_dim), np.float32)
    attended = np.empty((num_tokens, num_heads, head_dim), np.float32)
    up = np.empty((num_tokens, 2 * num_mid if is_llama else num_mid), np.float32)
    mid = np.empty((num_tokens, num_mid), np.float32) if is_llama else up
    for n in range(num_tokens):
        read_row(x[n], token_table, token_ids[n])
        if not is_llama:
            for i in range(width):
                x[n, i] += as_float(position_table[positions[n], i])
    for i in range(len(layers)):
        layer = layers[i]
        norm(y, x, layer, NORM_1, rotation, eps, is_llama)
        multiply(qkv.reshape(num_tokens, -1), y, layer, QKV, STORE, kind)
        if is_llama:
            for n in range(num_tokens):
                turn_heads(qkv[n], num_turned, layer, num_heads, rotation[positions[n]], eps)
        heads = stored(qkv, k_pool)
        q, k, v = heads[:, :num_heads], heads[:, num_heads:num_turned], heads[:, num_turned:]
        attention(attended, q, k, v, k_pool[i], v_pool[i], slot_mapping, query_start, context_lens, block_tables)
        multiply(x, attended.reshape(num_tokens, -1), layer, OUT, ADD, kind)
        norm(y, x, layer, NORM_2, rotation, eps, is_llama)
        multiply(up, y, layer, UP, STORE if is_llama else GELU, kind)
        if is_llama:
            silu_rows(mid, up)
        multiply(x, mid, layer, DOWN, ADD, kind)
    last = np.empty((len(tokens), width), np.float32)
    for i in range(len(tokens)):
        norm_row(last[i], x[sample_rows[i]], ends, LAST_NORM, rotation, eps, is_llama)
    multiply(logits, last, ends, OUTPUT, STORE, output_kind)
    choose(logits, tokens)


@cache
def compiled_forward(weights: np.dtype, output: np.dtype, tokens: np.dtype, values: np.dtype) -> Callable[..., None]:
    """Return forward in machine code, in half a minute, or in seconds where it was kept on disk.

    weights, output: the types of the layers' matrices and of the output matrix in their layout. tokens: the type of the
    table of token embeddings. values: the type of the pool and of all other weights. All as numba_calls.bits has them.
    """
    start_threads()
    kind, output_kind = (types.Array(numba.from_dtype(dtype), 1, "C") for dtype in (weights, output))
    token_table, table = (types.Array(numba.from_dtype(dtype), 2, "C") for dtype in (tokens, values))
    pool, floats = types.Array(table.dtype, 5, "C"), types.Array(types.float32, 2, "C")
    longs, ints = types.Array(types.int64, 1, "C"), types.Array(types.int32, 1, "C")
    addresses, block_tables = types.Array(types.int64, 2, "C"), types.Array(types.int32, 2, "A")
    signature = types.void(
        kind, output_kind, types.boolean, types.float32, types.intp, types.intp, addresses, longs, token_table,
        types.intp, table, table, longs, longs, ints, ints, ints, block_tables, longs, pool, pool, floats, longs,
    )  # fmt: skip
    with told_if_slow("compiling a step of the engine for this CPU, which is then kept on disk: about half a minute"):
        return compiled(signature)(forward)


def compile_usual() -> None:
    """Compile forward for weights in float32, with which most lessons run, and keep it. `make setup` runs this."""
    compiled_forward(*[np.dtype(np.float32)] * 4)
