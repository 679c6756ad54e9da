"""Lesson 12: wrong layouts are told what is wrong, and right ones pass; what its stage promises."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from wrong_answers import right_answers, wrong_answers

from roseinfer.models import load_model
from stages import FusedStep, PackedWeights


class Half(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight.to(torch.bfloat16), bias

    def forward(self, x):
        y = F.linear(x.to(torch.bfloat16), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias


def layout(layer):
    """A stage whose pack gives that layer."""
    return type("HalfWeights", (PackedWeights,), {"pack": classmethod(lambda cls, weight, bias: layer(weight, bias))})


HalfWeights = layout(Half)


class InFull(Half):
    """Rounded to 16 bits, kept in 32."""

    def __init__(self, weight, bias):
        super().__init__(weight, bias)
        self.weight = self.weight.float()

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def keeping(keep):
    """A right layer that holds keep(weight), too."""

    class Keeps(Half):
        def __init__(self, weight, bias):
            super().__init__(weight, bias)
            self.kept = keep(weight)

    return layout(Keeps)


def forwarding(forward, base=Half):
    return layout(type("Forwards", (base,), {"forward": forward}))


class Float16(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight.to(torch.float16), bias

    def forward(self, x):
        return F.linear(x, self.weight.float(), self.bias)


def rounds_x(self, x):
    return Half.forward(self, x.copy_(x.to(torch.bfloat16)))


class KeepsResults(Half):
    """One for each number of rows."""

    def __init__(self, weight, bias):
        super().__init__(weight, bias)
        self.results = {}

    def forward(self, x):
        return self.results.setdefault(len(x), super().forward(x))


class OneResult(KeepsResults):
    """The memory of the results is used again."""

    def forward(self, x):
        return super().forward(x).copy_(Half.forward(self, x))


class Widened(Half):
    """In float32 from the first call on."""

    def forward(self, x):
        if not hasattr(self, "wide"):
            self.wide = self.weight.float()
        return super().forward(x)


class OutputLeft(HalfWeights):
    def with_packed_matrices(self, model):
        twin = super().with_packed_matrices(model)
        if model.lm_head is None:
            twin.lm_head = None
        return twin


class InTheCallersModel(HalfWeights):
    def with_packed_matrices(self, model):
        for parent in list(model.modules()):
            for child_name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, child_name, self.pack(child.weight, child.bias))
        if model.lm_head is None:
            model.lm_head = self.pack(model.token_embedding.weight, None)
        return model


test_wrong_layouts = wrong_answers(
    "12.5",
    {
        "in 32 bits": (layout(InFull), "holds its matrix in float32"),
        "widened in the first call": (layout(Widened), "holds its matrix in float32"),
        "as a NumPy array": (keeping(lambda weight: weight.numpy().copy()), "holds its matrix in float32"),
        "float16": (layout(Float16), "holds its matrix in float16"),
        "no bias": (layout(lambda weight, bias: Half(weight, None)), "the bias is missing"),
        "the result in 16 bits": (
            forwarding(lambda self, x: Half.forward(self, x).to(torch.bfloat16)),
            "dtype bfloat16, expected float32",
        ),
        "the output matrix left": (OutputLeft, "the output matrix, the largest, is still"),
        "the caller's model": (InTheCallersModel, "the caller's model has lost its matrices"),
        "the stage before": (FusedStep, "expected a subclass of PackedWeights, got FusedStep"),
        "rounds x in place": (forwarding(rounds_x), "x was handed in, and you have changed it"),
        "results kept": (layout(KeepsResults), "called again, with -x: "),
        "one memory for all results": (layout(OneResult), "so both lie in the same memory"),
    },
)


class Buffered(nn.Module):
    """As a buffer, multiplied in float32."""

    def __init__(self, weight, bias):
        super().__init__()
        self.register_buffer("rows", weight.to(torch.bfloat16))
        self.register_buffer("bias", bias)

    def forward(self, x):
        return F.linear(x, self.rows.to(x.dtype), self.bias)


class Inside(nn.Module):
    """An nn.Linear in bfloat16 inside."""

    def __init__(self, weight, bias):
        super().__init__()
        self.inner = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None).to(torch.bfloat16)
        self.inner.weight.data.copy_(weight)
        if bias is not None:
            self.inner.bias.data.copy_(bias)

    def forward(self, x):
        return self.inner(x.to(torch.bfloat16)).to(x.dtype)


test_right_layouts = right_answers(
    "12.5",
    {
        "a buffer": layout(Buffered),
        "a linear layer inside": layout(Inside),
    },
)


# The stage.


def test_a_stage_leaves_the_callers_model_as_it_is():
    model = load_model("tiny")
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    stage = PackedWeights(model, num_blocks=4)
    assert stage.model is not model and model.lm_head is None
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == before[name][0] and torch.equal(tensor, before[name][1])
    shared = {name: p.data_ptr() for name, p in stage.model.named_parameters()}
    assert shared and all(before[name][0] == address for name, address in shared.items()), "norms and tables are shared"


def test_a_stage_that_cannot_pack_is_the_one_before(monkeypatch):
    def refuse(*args):
        raise RuntimeError("no")

    monkeypatch.setattr(PackedWeights, "pack", refuse)
    model = load_model("tiny")
    assert PackedWeights(model, num_blocks=4).model is model


@pytest.mark.parametrize("spec", ["tiny", "random:tiny-llama", "random:tiny-qwen3"])
def test_every_matrix_of_every_architecture_is_packed(spec):
    stage = PackedWeights(load_model(spec), num_blocks=4)
    if stage.can_pack(load_model(spec)):
        assert not any(isinstance(module, nn.Linear) for module in stage.model.modules())
