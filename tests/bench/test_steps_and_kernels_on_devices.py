"""The engine's decode step and its attention: what they start, and the least that they take. No time is judged."""

from __future__ import annotations

import json

import pytest
from devices import DEVICES

from roseinfer.bench.decode_step import LAUNCH_S, decode_steps
from roseinfer.bench.kernel_times import Shape, kernel_times
from roseinfer.bench.settings import DecodeStep

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_is_listed_counted_and_timed(device):
    setting = DecodeStep(models=["random:tiny-llama"], batch_sizes=[3, 1], context=20, repeats=4, device=device)
    result = decode_steps(setting)
    assert [row["batch_size"] for row in result.rows] == [3, 1] and [len(own) for own in result.samples] == [4, 4]
    for row, seconds in zip(result.rows, result.samples, strict=True):
        assert row["launches"] == sum(kernel["count"] for kernel in row["kernels"]) > 0
        assert row["bytes_seconds"] == (row["weight_bytes"] + row["kv_bytes"]) / result.copy_bytes_per_s
        assert row["launch_seconds"] == (LAUNCH_S * row["launches"] if device == "cuda" else 0)
        assert row["times_least"] == row["seconds"] / max(row["bytes_seconds"], row["launch_seconds"])
        assert min(seconds) <= row["seconds"] <= max(seconds) and row["warm_up_seconds"] > 0
        if device == "cuda":  # whose free memory other tests change meanwhile, so warm_up_bytes may have any sign
            assert isinstance(row["warm_up_bytes"], int)
            assert sum(kernel["share"] for kernel in row["kernels"]) == pytest.approx(1)
    three, one = result.rows
    assert three["kv_bytes"] == 3 * one["kv_bytes"] and three["weight_bytes"] == one["weight_bytes"]
    assert json.loads(result.to_json())["rows"] == result.rows
    assert "random:tiny-llama, batch 3\n" in result.text() and len(json.loads(result.to_line())["rows"]) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_of_a_launch_are_those_of_the_cached_keys_and_values(device):
    result = kernel_times(device, [Shape(2, 16, 1, 2, 16, 16, "float32")])
    (row,) = result.rows
    assert row["kv_bytes"] == 2 * 2 * 16 * 1 * 16 * 4  # K and V, sequences, tokens, KV heads, head size, fp32
    assert row["bandwidth_share"] > 0 and min(result.samples[0]) <= row["seconds"] <= max(result.samples[0])
    assert "KV GB/s" in result.text() and json.loads(result.to_json())["arguments"]["device"] == device
