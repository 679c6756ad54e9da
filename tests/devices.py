"""Devices that tests run on: a CPU, and with `pytest -m gpu` whatever CUDA device is there. Runners as on a GPU."""

from __future__ import annotations

import pytest
import torch

from roseinfer.engine.runner import Runner

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ("cpu", CUDA)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class ByModule(Runner):
    """Computes a step module by module, so that it may be a graph, as on a GPU: never in one compiled call."""

    def whole_step(self) -> None:
        return None
