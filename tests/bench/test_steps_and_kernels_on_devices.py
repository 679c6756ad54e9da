"""The engine's decode step and its attention: what they start, and the least that they take. No time is judged."""

from __future__ import annotations

import json

import pytest
import torch
from devices import DEVICES

from roseinfer.bench.decode_step import LAUNCH_S, decode_steps
from roseinfer.bench.kernel_times import Shape, kernel_times, large_inputs, sdpa_of
from roseinfer.bench.settings import DecodeStep
from roseinfer.kernels.attention import attention_for
from roseinfer.kernels.flat_cases import ATOL, judge
from roseinfer.kernels.paged_reference import paged_attention_reference

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


KINDS = {
    "decode": Shape(2, 16, 1, 2, 16, 16, "float32"),
    "prompts": Shape(2, 9, 1, 2, 16, 4, "float32", num_new=9),
    "verify": Shape(3, 21, 2, 1, 16, 16, "float32", num_new=5),
    "mixed": Shape(2, 16, 2, 1, 16, 4, "float32", prompt_len=7),
}


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_of_a_launch_are_those_of_the_cached_keys_and_values(device):
    result = kernel_times(device, [KINDS["decode"]])
    (row,) = result.rows
    assert row["kv_bytes"] == 2 * 2 * 16 * 1 * 16 * 4  # K and V, sequences, tokens, KV heads, head size, fp32
    assert row["bandwidth_share"] > 0 and min(result.samples[0]) <= row["seconds"] <= max(result.samples[0])
    assert "KV GB/s" in result.text() and json.loads(result.to_json())["arguments"]["device"] == device


@pytest.mark.parametrize("device", DEVICES)
def test_each_kind_of_batch_is_timed_and_prompts_beside_pytorchs_attention(device):
    result = kernel_times(device, [*KINDS.values()])
    assert [row["kind"] for row in result.rows] == [*KINDS] and len(result.samples) == len(KINDS)
    assert [row["kind"] for row in result.rows if row["sdpa_seconds"]] == ["prompts"]
    assert [one["new tokens"] for one in result.shown_rows()] == [2, 18, 15, 9]
    prompts, mixed = result.rows[1], result.rows[3]
    # Two products of 2 operations for each value of a head, over the tokens that each token sees: 1 + ... + 9.
    assert prompts["flops"] == 2 * 2 * 2 * 16 * 2 * 45
    assert mixed["flops"] == 2 * 2 * 2 * 16 * (2 * 16 + 28) and mixed["kv_bytes"] == 2 * (2 * 16 + 7) * 2 * 16 * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_the_inputs_are_those_of_a_step(device, kind):
    where = torch.device(device)
    case = large_inputs(KINDS[kind], where)
    assert judge(attention_for(where, in_one_launch=True), paged_attention_reference, case).verdict == "ok"
    if kind == "prompts":
        found = sdpa_of(KINDS[kind], case)().transpose(1, 2).flatten(0, 1)
        torch.testing.assert_close(found, paged_attention_reference(*case), atol=ATOL, rtol=0)
