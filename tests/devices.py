"""Devices that tests run on: a CPU, and with `pytest -m gpu` whatever CUDA device is there."""

from __future__ import annotations

import pytest
import torch

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ("cpu", CUDA)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
