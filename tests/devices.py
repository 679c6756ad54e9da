"""Devices that tests run on: a CPU, and with `pytest -m gpu` whatever CUDA device is there. Runners as on a GPU."""

from __future__ import annotations

import pytest
import torch

from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.runner import Runner
from roseinfer.engine.step_graphs import StepGraphs
from roseinfer.models import Model

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ("cpu", CUDA)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class ByModule(Runner):
    """Computes a step module by module, and as a graph, as on a GPU: never in one compiled call."""

    def __init__(
        self, model: Model, blocks: BlockManager, max_num_tokens: int, enforce_eager: bool = False, *others
    ) -> None:
        super().__init__(model, blocks, max_num_tokens, enforce_eager, *others)
        if not enforce_eager and not self.graphs:
            self.graphs = StepGraphs(self.compute, self.inputs, blocks, model.device)

    def whole_step(self) -> None:
        return None
