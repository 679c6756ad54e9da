"""Times of attention in a decode step, with the bytes that it reads."""

from __future__ import annotations

import json

import pytest
from devices import DEVICES

from roseinfer.bench.kernel_times import Shape, kernel_times

SHAPE = Shape(2, 16, 1, 2, 16, 16, "float32")


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_of_a_launch_are_those_of_the_cached_keys_and_values(device):
    result = kernel_times(device, [SHAPE])
    (row,) = result.rows
    assert row["kv_bytes"] == 2 * 2 * 16 * 1 * 16 * 4  # K and V, sequences, tokens, KV heads, head size, fp32
    assert row["bandwidth_share"] > 0 and min(result.samples[0]) <= row["seconds"] <= max(result.samples[0])
    assert "KV GB/s" in result.text() and json.loads(result.to_json())["arguments"]["device"] == device
