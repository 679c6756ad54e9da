"""with_qkv_apart: a stage that multiplies Q, K and V by three matrices; products_of_a_step counts the products."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roseinfer.generate import decode_step
from roseinfer.models import Model, empty_model
from roseinfer.profiling import trace_once
from roseinfer.stage import Stage

from ..measure.ready_batch import ready_batch


class Apart(nn.Module):
    """A joined matrix, multiplied as the separate matrices that it was joined from."""

    def __init__(self, joined: nn.Linear, sizes: list[int]) -> None:
        super().__init__()
        self.weights, self.biases = joined.weight.split(sizes), joined.bias.split(sizes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.linear(x, w, b) for w, b in zip(self.weights, self.biases, strict=True)], dim=-1)


def with_qkv_apart(stage_class: type[Any]) -> type[Stage]:
    """Make a stage like this one on a model of its own, in which Q, K and V are separate matrices."""

    class QKVApart(stage_class):
        def __init__(self, model: Model, **sizes: Any) -> None:
            twin = empty_model(model.config)
            twin.load_state_dict(model.state_dict(), assign=True)
            layers: Any = twin.h
            for layer in layers:
                sizes_of_parts = [n * model.config.head_dim for n in layer.attn.head_counts]
                layer.attn.c_attn = Apart(layer.attn.c_attn, sizes_of_parts)
            super().__init__(twin.requires_grad_(False), **sizes)

    QKVApart.__module__ = "__main__"  # it is the notebook's: a race names it by its class
    return QKVApart


def products_of_a_step(stage_class: type[Stage], model: Model) -> int:
    """Count the matrix products of one decode step, packed ones too."""
    batch = ready_batch(stage_class, model, [8])
    trace = trace_once(lambda: decode_step(*batch))
    return trace.count("aten::linear") + trace.count("mkldnn::_linear_pointwise")
