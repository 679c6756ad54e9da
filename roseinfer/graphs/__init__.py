"""Graphs: a step that is the same every time, kept and played back. CUDA's on a GPU, PyTorch's operations elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .cuda import CudaGraph
from .recorded import RecordedGraph

Graph = CudaGraph | RecordedGraph


def capture(
    run_step: Callable[[], Any],
    device: torch.device,
    memory: Graph | None = None,
    names: Mapping[str, Tensor] | None = None,
) -> Graph:
    """Return a graph of `run_step`, whose `replay()` does what the step did and returns its result.

    run_step: reads only tensors that stay where they are, and what it makes of them; it is run here, more than once.
    memory: an earlier graph to share results' memory with, on a GPU. names: for tensors, in a RecordedGraph's code.

    Raises RuntimeError for a step in which the host waits for a value.
    """
    if device.type == "cuda":
        assert not isinstance(memory, RecordedGraph), "memory must be a graph of the same device"
        return CudaGraph(run_step, memory)
    run_step()  # what it makes only the first time is made
    return RecordedGraph(run_step, names)
