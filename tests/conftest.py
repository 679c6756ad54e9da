"""Models that tests share."""

from __future__ import annotations

import os

# The models of these tests are on the CPU, on a machine with a GPU too. Before anything of roseinfer is imported.
os.environ.setdefault("ROSEINFER_TRITON", "interpret")
os.environ["ROSEINFER_PROGRESS"] = "off"  # what tests check is nobody's progress

import pytest  # noqa: E402
import torch  # noqa: E402
from oracles import small_model  # noqa: E402

from roseinfer.models import GPT2, load_model  # noqa: E402

torch.set_num_threads(1)


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
