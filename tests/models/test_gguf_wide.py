"""WIDE blocks: exactly the values that the package gguf computes of every kind."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_writing import drawn_blocks

from roseinfer.kernels.quantized_layout import WIDE
from roseinfer.models.gguf_wide import KINDS, in_wide_blocks

NUM_ROWS, NUM_BLOCKS = 1030, 2  # more rows than are taken apart at a time


def drawn_rows(kind):
    blocks = drawn_blocks(kind, NUM_ROWS * NUM_BLOCKS)
    blocks[:NUM_BLOCKS] = 0
    return blocks.reshape(NUM_ROWS, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_kept(kind):
    raw = drawn_rows(kind)
    wide = in_wide_blocks(torch.from_numpy(raw), kind).numpy().reshape(NUM_ROWS, -1, 8 + WIDE.group)
    numbers, q = wide[..., :8].copy().view(np.float32), wide[..., 8:].copy().view(np.int8).astype(np.float32)
    values = numbers[..., :1] * q + numbers[..., 1:]
    assert np.array_equal(values.reshape(NUM_ROWS, -1), gguf.quants.dequantize(raw, Kind[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_known_without_the_bytes(kind):
    raw = torch.from_numpy(drawn_rows(kind))
    planned, made = in_wide_blocks(raw.to("meta"), kind), in_wide_blocks(raw, kind)
    assert (planned.shape, planned.dtype, planned.is_meta) == (made.shape, made.dtype, True)
