"""Blocks of a GGUF file that no product reads as they are, in WIDE blocks with exactly their values.

A value of each of these kinds is scale * q + minimum, with a q of at most 8 bits and numbers that 16 values or more
share. How a kind packs them is ggml's (ggml-common.h, ggml-quants.c); the package gguf computes with the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from roseinfer.kernels.quantized_layout import WIDE
from roseinfer.kernels.tiled_numba import TILE

from .linear import PIECE

# q [blocks, values], and the scales and minima of runs of as many values, [blocks, runs]; no minima: None.
Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]
BITS = np.arange(8, dtype=np.uint8)


def in_wide_blocks(raw: Tensor, kind: str) -> Tensor:
    """Return rows of blocks of a kind in KINDS, uint8 [M, bytes], as rows of WIDE blocks."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    num_values, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    num_blocks = raw.shape[1] // block_bytes * num_values // WIDE.group
    out = torch.empty(len(raw), num_blocks * WIDE.group_bytes // TILE, dtype=torch.uint8, device=raw.device)
    for first in range(0, 0 if raw.is_meta else len(raw), PIECE):
        rows = raw[first : first + PIECE].numpy()
        out[first : first + PIECE] = torch.from_numpy(_wide(rows.reshape(-1, block_bytes), kind).reshape(len(rows), -1))
    return out


def _wide(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Return blocks, uint8 [blocks, bytes], as WIDE blocks, [blocks, runs of 16 values, bytes]."""
    q, scales, minima = KINDS[kind](blocks)
    runs, head = q.reshape(len(q), -1, WIDE.group), WIDE.group_head // TILE
    out = np.zeros((*runs.shape[:2], head + WIDE.group), np.uint8)
    numbers = out[..., :head].view(np.float32)
    for i, values in enumerate([scales] if minima is None else [scales, minima]):
        numbers[..., i] = np.repeat(values, runs.shape[1] // values.shape[1], axis=1)
    out[..., head:] = runs.astype(np.int8).view(np.uint8)
    return out


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return a float16 of each block as float32, [blocks, 1]."""
    return blocks[:, at : at + 2].view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Return the lower halves of bytes, and after them the upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """Return one bit of each of 32 values, [blocks, 32], as the fifth of theirs. packed: [blocks, 4]."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _q8_0(blocks: np.ndarray) -> Parts:
    return blocks[:, 2:].view(np.int8), _half(blocks, 0), None


def _q4_0(blocks: np.ndarray) -> Parts:
    return _nibbles(blocks[:, 2:]).astype(np.int8) - 8, _half(blocks, 0), None


def _q4_1(blocks: np.ndarray) -> Parts:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> Parts:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return q.astype(np.int8) - 16, _half(blocks, 0), None


def _q5_1(blocks: np.ndarray) -> Parts:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _half(blocks, 2)


def _q4_k(blocks: np.ndarray) -> Parts:
    return _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256), *_scales_of_8(blocks)


def _q5_k(blocks: np.ndarray) -> Parts:
    q = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = blocks[:, 16:48].reshape(-1, 1, 32) >> BITS[:, None] & 1
    return (q | fifth << 4).reshape(-1, 256), *_scales_of_8(blocks)


def _scales_of_8(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales and minima of 8 runs of 32 values, each 6 bits and times a float16 of the block."""
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    low, high = packed[:, :2], packed[:, 2]
    scales = np.concatenate([low[:, 0] & 63, high & 15 | low[:, 0] >> 2 & 48], axis=1)
    minima = np.concatenate([low[:, 1] & 63, high >> 4 | low[:, 1] >> 2 & 48], axis=1)
    return _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _q6_k(blocks: np.ndarray) -> Parts:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> 2 * BITS[:4, None] & 3
    q = (low | high.reshape(-1, 8, 32) << 4).reshape(-1, 256).astype(np.int8) - 32
    return q, _half(blocks, 208) * blocks[:, 192:208].view(np.int8), None


# Kind -> what takes its blocks apart, uint8 [blocks, bytes].
KINDS: dict[str, Callable[[np.ndarray], Parts]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
