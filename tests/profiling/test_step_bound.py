"""Bounds of a step: a rate of the machine, its own kernels, or the host that starts everything."""

from collections import Counter

import pytest
import torch
from oracles import small_model

from roseinfer.models import load_model
from roseinfer.models.linear import MatrixInTiles
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling import Machine, decode_floor
from roseinfer.profiling import step_bound as module
from roseinfer.profiling.step_bound import products_seconds, step_bound
from stages import PackedWeights
from stages.s12_packed_weights import PackedLinear

EXACT = decode_floor(small_model().config, [8] * 4, torch.float32)
READ = EXACT.weight_bytes + EXACT.kv_bytes


def bound(step_seconds, reading, arithmetic, products, own_bytes=0, own_flops=0):
    """step_bound of a machine that takes so many seconds to read the floor's bytes, and for the floor's operations."""
    machine = Machine("a machine", "cpu", torch.float32, READ / reading, EXACT.flops / arithmetic, samples={})
    floor = decode_floor(small_model().config, [8] * 4, torch.float32, machine)
    return step_bound(floor, machine, step_seconds, products, own_bytes, own_flops)


def test_a_rate_bounds_a_step_if_it_takes_half_of_it():
    for step_seconds, expected in ((9.9, "reading"), (10.1, "the host")):
        assert bound(step_seconds, reading=5.0, arithmetic=1.0, products=0.0) == expected
    for step_seconds, expected in ((9.9, "arithmetic"), (10.1, "the host")):
        assert bound(step_seconds, reading=1.0, arithmetic=5.0, products=0.0) == expected


def test_a_step_whose_products_are_inside_one_operation_is_bound_by_it():
    assert bound(10.0, reading=1.0, arithmetic=0.1, products=None) == "its kernels"
    assert bound(10.0, reading=6.0, arithmetic=0.1, products=None) == "reading"


def test_far_above_both_rates_the_products_decide_between_kernels_and_host():
    reads_cache = EXACT.kv_bytes / READ  # of a second
    for products, expected in ((5.1 - reads_cache, "its kernels"), (4.9 - reads_cache, "the host")):
        assert bound(10.0, reading=1.0, arithmetic=0.1, products=products) == expected


def test_what_a_step_copies_and_computes_beyond_its_floor_is_its_own_work():
    assert bound(10.0, reading=1.0, arithmetic=0.1, products=3.0) == "the host"
    assert bound(10.0, reading=1.0, arithmetic=0.1, products=3.0, own_bytes=2 * READ) == "its kernels"
    assert bound(10.0, reading=1.0, arithmetic=0.1, products=3.0, own_bytes=5 * READ) == "reading"
    assert bound(10.0, reading=0.1, arithmetic=1.0, products=3.0, own_flops=2 * EXACT.flops) == "its kernels"
    assert bound(10.0, reading=0.1, arithmetic=1.0, products=3.0, own_flops=5 * EXACT.flops) == "arithmetic"


@pytest.mark.parametrize("spec", ["tiny", "random:tiny-llama", "random:tiny-qwen3"])
def test_the_products_are_those_of_a_decode_step(spec, monkeypatch):
    """Every matrix of the floor once, on as many rows as there are sequences."""
    model = load_model(spec)
    multiplied = Counter()
    linear = torch.nn.functional.linear

    def counted(x, weight, bias=None):
        multiplied[len(x)] += weight.numel()
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    monkeypatch.setattr(module, "passes", lambda work, *_: [(multiplied.clear(), work(), 1.5)[-1]])
    assert products_seconds(model, 3) == 1.5
    one, two = (decode_floor(model.config, [context], torch.float32).flops for context in (1, 2))
    matrices = (one - (two - one)) // 2  # without attention
    assert multiplied == {3: matrices}


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_products_of_a_prepared_model_are_all_there(quantization, monkeypatch):
    """They are counted in any layout that prepare_weights chooses; without a layer, a step would seem host-bound."""
    loaded = load_model("tiny")
    assert called_by(prepared_copy(loaded, quantization), loaded, (MatrixInTiles, torch.nn.Linear), monkeypatch) == 17


def test_the_products_of_a_stage_are_those_of_its_own_layers(monkeypatch):
    """Stage 12's layers are a class of its own, which does not say how wide its rows are."""
    loaded = load_model("tiny")
    own = PackedWeights(loaded, num_blocks=1).model
    assert called_by(own, loaded, (PackedLinear,), monkeypatch) == 17


def called_by(own, loaded, kinds, monkeypatch):
    """Number of layers of these kinds in `own`, each called once."""
    layers = [m for m in own.modules() if isinstance(m, kinds)]
    called = Counter()
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, inputs: called.update([(layer, len(inputs[0]))]))
    monkeypatch.setattr(module, "passes", lambda work, *_: [(called.clear(), work(), 1.5)[-1]])
    assert products_seconds(loaded, 3, own) == 1.5
    assert called == {(layer, 3): 1 for layer in layers}
    return len(layers)
