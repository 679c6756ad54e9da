"""Models that tests share, and what is skipped where Triton is not installed."""

from __future__ import annotations

import os
import signal

# Started in the background, a process does not hear Ctrl-C, nor do those that it starts. Tests send it, and wait.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The models of these tests are on the CPU, on a machine with a GPU too. Before anything of roseinfer is imported.
os.environ.setdefault("ROSEINFER_TRITON", "interpret")
os.environ["ROSEINFER_PROGRESS"] = "off"  # what tests check is nobody's progress

import pytest  # noqa: E402
import torch  # noqa: E402
from oracles import small_model  # noqa: E402

from roseinfer.kernels import triton_mode  # noqa: E402
from roseinfer.models import GPT2, load_model  # noqa: E402
from stages import TritonPaged  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Numba's first parallel loop gives torch, whose OpenMP it shares, as many threads as it takes itself."""
    torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_triton: skipped, and said so, where Triton is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases of the stage that is a Triton kernel need no mark."""
    if triton_mode.language() is not None:
        return
    for item in items:
        if item.get_closest_marker("needs_triton") or any(value is TritonPaged for value in parameters(item)):
            item.add_marker(pytest.mark.skip(reason=triton_mode.unavailable()))


def parameters(item: pytest.Item) -> list[object]:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


@pytest.fixture(scope="session")
def small() -> GPT2:
    return small_model()


@pytest.fixture(scope="session")
def grouped() -> GPT2:
    """Four query heads over two key/value heads."""
    return small_model(num_kv_heads=2)


@pytest.fixture(scope="session")
def tiny() -> GPT2:
    return load_model("tiny")


@pytest.fixture(scope="session")
def gpt2_shape() -> GPT2:
    return load_model("random:gpt2")
