"""Blocks of a GGUF file that no product reads as they are, in WIDE blocks with exactly their values.

A value of each of these kinds is scale * q + minimum, with a q of at most 8 bits and numbers that 16 values or more
share. How a kind packs them is ggml's (ggml-common.h, ggml-quants.c); the package gguf computes with the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from roseinfer.kernels.quantized_layout import WIDE

# q [blocks, values], and the scales and minima of runs of as many values, [blocks, runs]; no minima: None.
Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]
BITS = np.arange(8, dtype=np.uint8)


def wide(raw: np.ndarray, kind: str) -> np.ndarray:
    """Return rows of blocks, uint8 [M, bytes], of a kind in KINDS as rows of WIDE blocks."""
    block_bytes, parts_of = KINDS[kind]
    q, scales, minima = parts_of(raw.reshape(-1, block_bytes))
    runs = q.reshape(len(q), -1, WIDE.group)
    out = np.zeros((*runs.shape[:2], 2 * WIDE.number_bytes + WIDE.group), np.uint8)
    numbers = out[..., : 2 * WIDE.number_bytes].view(np.float32)
    for i, values in enumerate([scales] if minima is None else [scales, minima]):
        numbers[..., i] = np.repeat(values, runs.shape[1] // values.shape[1], axis=1)
    out[..., 2 * WIDE.number_bytes :] = runs.astype(np.int8).view(np.uint8)
    return out.reshape(len(raw), -1)


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


# Kind -> the bytes of a block, and what takes blocks, uint8 [blocks, bytes], apart.
KINDS: dict[str, tuple[int, Callable[[np.ndarray], Parts]]] = {
    "Q8_0": (34, _q8_0),
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
