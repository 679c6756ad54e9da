"""Traces that several files look into."""

from __future__ import annotations

import pytest
from trace_cases import toy_step, two_gpu_steps

from roseinfer.profiling import Trace, capture


@pytest.fixture(scope="session")
def live() -> Trace:
    """Three toy steps of this machine."""
    return capture(toy_step(), steps=3, warmup=1)


@pytest.fixture
def on_a_gpu() -> Trace:
    return Trace(two_gpu_steps())
