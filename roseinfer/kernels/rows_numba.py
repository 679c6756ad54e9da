"""What a step computes of each token alone, as compiled functions: embeddings, norms, RoPE, SwiGLU, rounded K and V."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic, overload
from torch import Tensor

from roseinfer.graphs.operation import operation

from .layer_table import K_NORM, Q_NORM, values_at
from .numba_calls import bits, compiled
from .paged_numba import SUMS, as_float, exp_of_negative
from .quantized_layout import OF_FILES, by_type
from .simd import F32
from .tiled_numba import TILE, bits_of_bfloat16

FEW = 16  # rows below which one thread computes them: sooner done than shared out


@operation
def embedded(token_ids: Tensor, table: Tensor, width: int) -> Tensor:
    """Return rows of a table of token embeddings in float32, [N, width].

    table: [V, width] of float32, float16 or bfloat16, or `stored_tiles` of a GGUF file's blocks.
    """
    out = torch.empty(len(token_ids), width)
    read_rows(out.numpy(), bits(table), token_ids.numpy())
    return out


@compiled()
def read_rows(out, table, indices):
    for n in range(len(indices)):
        read_row(out[n], table, indices[n])


def read_row(out, table, index):
    """Write a row of a table to out [C], float32. It is only ever compiled, one version for each type of table."""
    raise NotImplementedError


@intrinsic
def half_as_float(typing: Any, x: types.Integer) -> tuple[Any, Callable]:
    """Return the float16 of these bits. Infinity and NaN stay what they are, where as_float makes large numbers."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), F32)

    return types.float32(types.uint16), generate


@overload(read_row)
def _read_row(out, table, index):
    layout = by_type(OF_FILES).get(table.dtype)
    if layout is None:
        value_of = half_as_float if table.dtype == types.uint16 else as_float

        def numbers(out, table, index):
            for i in range(len(out)):
                out[i] = value_of(table[index, i])

        return numbers

    bits_, offset, head, block_bytes, size = (
        layout.bits, layout.offset, layout.group_head, layout.group_bytes, layout.group
    )  # fmt: skip
    number = np.dtype(np.float32 if layout.number_bytes == 4 else np.uint16)
    number_of = as_float if layout.number_bytes == 4 else half_as_float
    has_minimum = head > number.itemsize * TILE

    def blocks(out, table, index):
        tile, row = table[index // TILE].view(np.uint8), index % TILE
        for block in range(len(out) // size):
            at, begin = block * block_bytes, block * size
            of_block = tile[at : at + head].view(number)
            scale = number_of(of_block[row])
            minimum = number_of(of_block[TILE + row]) if has_minimum else np.float32(0)
            for i in range(size * bits_ // 8):
                byte = tile[at + head + i * TILE + row]
                if bits_ == 8:
                    out[begin + i] = scale * np.float32(np.int8(byte)) + minimum
                else:
                    out[begin + i] = scale * np.float32(np.int32(byte & 15) - offset) + minimum
                    out[begin + size // 2 + i] = scale * np.float32(np.int32(byte >> 4) - offset) + minimum

    return blocks


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
