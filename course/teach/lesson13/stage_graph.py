"""show_stage_graph and record_decode: what a stage's step consists of, with the names that its tensors have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roseinfer.generate import decode_step
from roseinfer.graphs import capture
from roseinfer.graphs.recorded import RecordedGraph
from roseinfer.profiling.reachable import tensors_of
from roseinfer.profiling.replay import StepRecord, record_step

from ..source.recorded_code import RecordedCode, show_graph

POOL = ("k_cache", "v_cache", "attended")


def show_stage_graph(stage: Any, bucket: int, first: int, last: int) -> RecordedCode:
    """Capture the step of a stage for one bucket, on a CPU, and show the first and the last lines of its graph."""
    with torch.inference_mode():
        graph = capture(stage.static_step(bucket), stage.model.device, names=_names(stage))
    assert isinstance(graph, RecordedGraph), "on a CPU"

    def kind_of(name: str) -> str:
        return "input" if name in stage.inputs_on_device else "pool" if name.startswith(POOL) else "weight"

    return show_graph(graph, kind_of, first, last)


def _names(stage: Any) -> dict[str, Tensor]:
    names = dict(stage.model.named_parameters()) | stage.inputs_on_device | {"attended": stage.attended}
    for name, layer in stage.model.named_modules():
        if hasattr(layer, "packed"):
            names |= {name: layer.packed} | ({} if layer.bias is None else {f"{name}.bias": layer.bias})
    for layer in range(stage.model.config.num_layers):
        names[f"k_cache_{layer}"], names[f"v_cache_{layer}"] = stage.pool[:, layer]
    return names


def record_decode(stage: Any, seqs: Sequence[Any], step: Callable[[], Any] | None = None) -> StepRecord:
    """Record every operation of a decode step, with the addresses of weights, pool and buffers.

    step: what is recorded, None for decode_step on the stage.
    """
    kept = tensors_of(stage.model, stage.pool, stage.attended, stage.device_buffer)
    with torch.inference_mode():
        return record_step(step or partial(decode_step, stage, seqs), kept)
