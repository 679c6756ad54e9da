"""decode_floor: bytes and operations worked out by hand; measure_machine: its shape, never its speed."""

import dataclasses
from math import isnan

import pytest
import torch

from roseinfer.display import Table
from roseinfer.models import GPT2, ModelConfig, empty_model, shape_of
from roseinfer.profiling import Machine, decode_floor, floors, measure_machine, prefill_floor
from roseinfer.profiling.floors import CACHE_SIZES, MIB

GPT2_SMALL = ModelConfig("gpt2", 50257, 768, 12, 12, 12, 64, 3072, 1024)
GPT2_SMALL_PARAMETERS = 124_439_808
POSITION_PARAMETERS = 786_432


def machine(read_bytes_per_s: float, flops_per_s: float) -> Machine:
    return Machine("a machine", "cpu", torch.float32, read_bytes_per_s, flops_per_s, {})


def test_gpt2_small_weighs_what_is_known():
    floor = decode_floor(GPT2_SMALL, [10], torch.float32)
    assert floor.weight_bytes == 4 * (GPT2_SMALL_PARAMETERS - POSITION_PARAMETERS + 768)
    assert decode_floor(GPT2_SMALL, [10], torch.bfloat16).weight_bytes == floor.weight_bytes // 2


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_weights_are_those_of_the_model(num_kv_heads):
    config = ModelConfig("gpt2", 101, 24, 3, 4, num_kv_heads, 5, 40, 16)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in GPT2(config).parameters())
    unused_positions = (config.max_model_len - 2) * config.hidden_size
    floor = decode_floor(config, [7, 9, 7], torch.float32)
    assert floor.weight_bytes == 4 * (parameters - unused_positions)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_weights_are_those_of_the_llama_family(architecture, tied, biases):
    shape = shape_of(f"random:tiny-{architecture}")
    config = dataclasses.replace(shape, tie_embeddings=tied, qkv_bias=biases, o_bias=biases, intermediate_size=100)
    numel = {name: p.numel() for name, p in empty_model(config).named_parameters()}
    if not tied:
        numel["embed_tokens.weight"] = config.hidden_size  # one row
    floor = decode_floor(config, [7, 9, 7], torch.bfloat16)
    assert floor.weight_bytes == 2 * sum(numel.values())


def test_operations_and_cache_of_qwen_0_5b_are_what_its_shape_says():
    config = shape_of("random:qwen2.5-0.5b")
    numel = {name: p.numel() for name, p in empty_model(config).named_parameters()}
    assert sum(numel.values()) == 494_032_768
    matrices = sum(n for name, n in numel.items() if "norm" not in name and not name.endswith("bias"))
    floor = decode_floor(config, [100, 28], torch.bfloat16)
    assert floor.flops == 2 * 2 * matrices + 4 * 24 * 14 * 64 * 128
    assert floor.kv_bytes == 128 * 2 * 24 * 2 * 64 * 2
    assert floor.weight_bytes == 2 * 494_032_768


def test_keys_and_values_of_every_context_are_read_once_and_the_new_ones_written():
    per_token = 2 * 12 * 12 * 64 * 4  # K and V, layers, heads, head_dim, fp32
    assert decode_floor(GPT2_SMALL, [1], torch.float32).kv_bytes == per_token
    assert decode_floor(GPT2_SMALL, [100, 28], torch.float32).kv_bytes == 128 * per_token
    grouped = dataclasses.replace(GPT2_SMALL, num_kv_heads=3)
    assert decode_floor(grouped, [100, 28], torch.float32).kv_bytes == 128 * per_token // 4


def test_operations_are_two_per_matrix_weight_and_sequence_plus_attention():
    matrix_weights = 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072) + 50257 * 768
    attention_per_token = 4 * 12 * 12 * 64
    floor = decode_floor(GPT2_SMALL, [100, 28], torch.float32)
    assert floor.flops == 2 * 2 * matrix_weights + 128 * attention_per_token


def test_a_prefill_computes_every_token_and_the_logits_of_the_last_ones():
    layer_weights, output = 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072), 50257 * 768
    floor = prefill_floor(GPT2_SMALL, [100, 28], torch.float32)
    seen = sum(range(1, 101)) + sum(range(1, 29))
    assert floor.flops == 2 * (layer_weights * 128 + output * 2) + 4 * 12 * 12 * 64 * seen
    assert floor.kv_bytes == 128 * 2 * 12 * 12 * 64 * 4
    assert floor.weight_bytes == 4 * (GPT2_SMALL_PARAMETERS - POSITION_PARAMETERS + 100 * 768)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "mistral", "qwen2", "qwen3"])
def test_a_prefill_of_single_tokens_is_a_decode_step_of_them(architecture):
    config = GPT2_SMALL if architecture == "gpt2" else shape_of(f"random:tiny-{architecture}")
    step = decode_floor(config, [1, 1, 1], torch.bfloat16, machine(1e9, 1e12))
    assert prefill_floor(config, [1, 1, 1], torch.bfloat16, machine(1e9, 1e12)) == step


@pytest.mark.parametrize("lengths", [[], [0], [1025]])
def test_a_prefill_that_cannot_be_is_refused(lengths):
    with pytest.raises(ValueError, match="^prompt_lens must"):
        prefill_floor(GPT2_SMALL, lengths, torch.float32)


def test_seconds_are_the_larger_of_moving_and_computing():
    exact = decode_floor(GPT2_SMALL, [8] * 4, torch.float32)
    assert isnan(exact.seconds) and exact.bound is None
    moved = exact.weight_bytes + exact.kv_bytes
    slow_memory = decode_floor(GPT2_SMALL, [8] * 4, torch.float32, machine(1e9, 1e15))
    assert (slow_memory.seconds, slow_memory.bound) == (moved / 1e9, "reading")
    slow_math = decode_floor(GPT2_SMALL, [8] * 4, torch.float32, machine(1e15, 1e9))
    assert (slow_math.seconds, slow_math.bound) == (exact.flops / 1e9, "arithmetic")


def test_what_a_cache_holds_is_read_at_the_rate_of_its_size():
    caches = {1 * MIB: 90e9, 8 * MIB: 100e9, 64 * MIB: 5e9}
    cached = dataclasses.replace(machine(10e9, 1e15), cached_reads=caches)
    rates = {nbytes: cached.read_rate(nbytes) for nbytes in (1, 8 * MIB, 15 * MIB, 16 * MIB, 200 * MIB)}
    # At least as fast as the next larger size, and never slower than memory: a noisy pass makes no floor too high.
    assert rates == {1: 100e9, 8 * MIB: 100e9, 15 * MIB: 100e9, 16 * MIB: 10e9, 200 * MIB: 10e9}
    floor = decode_floor(GPT2_SMALL, [8], torch.float32, machine(10e9, 1e15))
    tiny = decode_floor(shape_of("random:tiny-llama"), [8], torch.float32, cached)
    assert floor.seconds == (floor.weight_bytes + floor.kv_bytes) / 10e9
    assert tiny.seconds == (tiny.weight_bytes + tiny.kv_bytes) / 100e9


def test_the_exact_text_of_a_floor_has_no_times():
    floor = decode_floor(GPT2_SMALL, [8] * 4, torch.float32, machine(1e9, 1e12))
    bundle = Table.of(floor)._repr_mimebundle_()
    assert bundle["text/plain"] == repr(Table.of(decode_floor(GPT2_SMALL, [8] * 4, torch.float32)))
    assert f"{floor.weight_bytes:,}" in bundle["text/plain"]
    assert "bound by" in bundle["text/html"]
    assert "bound by" not in bundle["text/plain"]


@pytest.mark.parametrize(
    "config, context_lens, message",
    [
        (GPT2_SMALL, [], "context_lens must name at least one"),
        (GPT2_SMALL, [5, 0], r"context_lens must lie in 1..1024 .*got 0"),
        (GPT2_SMALL, [1025], r"context_lens must lie in 1..1024 .*got 1025"),
        (dataclasses.replace(GPT2_SMALL, architecture="mamba"), [5], "architecture='mamba'"),
    ],
)
def test_bad_input_is_refused(config, context_lens, message):
    with pytest.raises(ValueError, match=message):
        decode_floor(config, context_lens, torch.float32)


@pytest.mark.slow
def test_a_machine_is_measured_once_and_shows_its_rates_only_live():
    measured = measure_machine()
    assert measure_machine("cpu", torch.float32) is measured
    assert measured.name
    assert measured.read_bytes_per_s == max(measured.samples["read_bytes_per_s"]) > 0
    assert measured.flops_per_s == max(measured.samples["flops_per_s"]) > 0
    assert tuple(measured.cached_reads) == CACHE_SIZES and min(measured.cached_reads.values()) > 0
    bundle = Table.of(measured)._repr_mimebundle_()
    assert measured.name not in bundle["text/plain"]
    assert "GB/s" not in bundle["text/plain"]
    assert "GB/s" in bundle["text/html"]


@pytest.mark.slow
def test_half_precision_on_a_cpu_is_never_slower_than_float32():
    assert measure_machine(dtype=torch.bfloat16).flops_per_s >= measure_machine(dtype=torch.float32).flops_per_s


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_of_products_is_that_of_the_faster_way(dtype, monkeypatch):
    """Packed weights may be far faster; a floor that does not know is one that a model goes below."""
    x, weight = torch.randn(3, 64).to(dtype), torch.randn(32, 64).to(dtype)
    for product in floors._packed_product(x, weight):
        torch.testing.assert_close(product(), torch.nn.functional.linear(x, weight))
    seconds = iter([2.0, 3.0, 1.0, 4.0])
    monkeypatch.setattr(floors, "_packed_product", lambda x, weight: [lambda: None])
    monkeypatch.setattr(floors, "passes", lambda *_: [next(seconds), next(seconds)])
    assert floors._linear_rates("cpu", dtype, 4, 8, 0.1) == [512 / s for s in (2, 3, 1, 4)]


def test_where_nothing_can_be_packed_plain_products_are_measured(monkeypatch):
    monkeypatch.setattr(floors, "packs", lambda dtype: False)
    assert floors._packed_product(torch.ones(3, 64), torch.ones(32, 64)) == []
    assert [len(floors._linear_rates("cpu", torch.float32, 4, 64, budget)) for budget in (1e-9, 0)] == [3, 1]


@pytest.mark.parametrize("arguments, message", [(("meta",), "device must be"), (("cpu", torch.int64), "dtype must be")])
def test_a_machine_that_cannot_be_measured_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure_machine(*arguments)
