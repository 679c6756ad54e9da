"""What a step is bound by: by its own matrix products, or by the host that starts everything."""

from collections import Counter

import pytest
import torch
from oracles import small_model

from roseinfer.engine.weights import LAYOUTS, prepared_copy
from roseinfer.models import load_model
from roseinfer.profiling import Machine, decode_floor
from roseinfer.profiling import step_bound as module
from roseinfer.profiling.step_bound import products_seconds, step_bound


def test_half_of_the_step_decides():
    config = small_model().config
    exact = decode_floor(config, [8] * 4, torch.float32)
    for rates, bound in (((exact.kv_bytes, 1e15), "reading"), ((1e15, exact.flops), "arithmetic")):
        machine = Machine("a machine", "cpu", torch.float32, *rates, samples={})
        floor = decode_floor(config, [8] * 4, torch.float32, machine)
        moving = 1.0 if bound == "reading" else 0.0  # seconds, of keys and values
        assert step_bound(floor, machine, 9.9, products=5.0 - moving) == bound
        assert step_bound(floor, machine, 10.1, products=5.0 - moving) == "the host"
    slow = Machine("a machine", "cpu", torch.float32, exact.kv_bytes, 1e15, samples={})
    floor = decode_floor(config, [8] * 4, torch.float32, slow)
    assert step_bound(floor, slow, 10.1, products=4.0, own_bytes=exact.kv_bytes) == "reading"  # its own copies
    again = 10**15  # a second of arithmetic that the floor does without
    assert step_bound(floor, slow, 10.1, products=3.5, own_flops=again) == "reading"
    assert step_bound(floor, slow, 10.1, products=3.5, own_flops=99 * again) == "arithmetic"


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
    """Whatever layout prepare_weights chose: a layer that was not seen would make a step wait for the host."""
    model = prepared_copy(load_model("tiny"), quantization)
    layers = [m for m in model.modules() if isinstance(m, (*LAYOUTS, torch.nn.Linear))]
    called = Counter()
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, inputs: called.update([(layer, len(inputs[0]))]))
    monkeypatch.setattr(module, "passes", lambda work, *_: [(called.clear(), work(), 1.5)[-1]])
    assert products_seconds(model, 3) == 1.5
    assert called == {(layer, 3): 1 for layer in layers} and len(layers) == 17
