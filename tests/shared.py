"""Models that tests share, the device that a test runs on, and what is skipped without Triton or a GPU."""

from __future__ import annotations

import pytest
import torch
from devices import DEVICES
from oracles import model_of

from course.contract.small_models import soft_model
from roseinfer.kernels import triton_mode
from roseinfer.models import GPT2, Model, load_model
from stages import FewLaunches, TritonPaged

torch.set_num_threads(1)
IN_TRITON = (TritonPaged, FewLaunches)


@pytest.fixture(autouse=True)
def one_thread_and_gradients() -> None:
    """What a test before this one set for its process: Numba's first parallel loop gives torch, whose OpenMP it shares,
    as many threads as it takes itself, and `teach.setup` turns gradients off."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the cases of a GPU for `-m gpu` and for no other command, and skip what this machine cannot run. Cases of
    the stages with a Triton kernel need no mark.

    Raises UsageError for a case of a GPU in another file than test_*_on_devices.py: `make gpu-report` would miss it.
    """
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    missed = sorted({item.path.name for item in on_gpu if not item.path.stem.endswith("_on_devices")})
    if missed:
        raise pytest.UsageError(f"cases of a GPU belong in files named test_*_on_devices.py, found in {missed}")
    if "gpu" not in config.option.markexpr:
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in set(on_gpu)]
    elif reason := why_no_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))
    if triton_mode.language() is None:
        for item in items:
            if item.get_closest_marker("needs_triton") or any(
                value in IN_TRITON for value in parameters(item) if isinstance(value, type)
            ):
                item.add_marker(pytest.mark.skip(reason=triton_mode.unavailable()))


def why_no_gpu() -> str | None:
    """Why no test can run on a GPU here, in one line; None when they can."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    if triton_mode.MODE == "interpret":
        return "Triton's kernels are interpreted in this process: run `pytest -m gpu` without ROSEINFER_TRITON"
    return triton_mode.unavailable("cuda")


def parameters(item: pytest.Item) -> list[object]:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """A test that takes it runs on the CPU, and with `-m gpu` on a GPU."""
    return request.param


@pytest.fixture(scope="session")
def small() -> Model:
    return model_of("gpt2")


@pytest.fixture(scope="session")
def grouped() -> Model:
    """Four query heads over two key/value heads."""
    return model_of("gpt2, 2 KV heads")


@pytest.fixture(scope="session")
def tiny() -> GPT2:
    return load_model("tiny")


@pytest.fixture(scope="session")
def gpt2_layers() -> Model:
    """Twelve layers with 12 heads of 64, as GPT-2 small has, and little around them: for counts of operations."""
    return soft_model(192, num_layers=12, num_heads=12, num_kv_heads=12, head_dim=64)


@pytest.fixture(scope="session")
def gpt2_shape() -> GPT2:
    return load_model("random:gpt2")
