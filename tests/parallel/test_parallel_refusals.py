"""What tensor_parallel_size refuses, each in one line and before a process is started."""

from __future__ import annotations

from typing import Any

import pytest
from oracles import small_model

from roseinfer.llm.llm import LLM
from roseinfer.models.weights import prepared_copy

MODEL = small_model()
DRAFT = {"method": "draft_model", "model": MODEL, "num_tokens": 2}


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("roseinfer.parallel.ranks.start_process", start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be an integer of at least 1, got 0"),
        ({"tensor_parallel_size": "2"}, "tensor_parallel_size must be an integer of at least 1, got '2'"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size=3 must divide the model's num_heads=4"),
        ({"model": small_model(1)}, "tensor_parallel_size=2 must divide the model's num_kv_heads=1"),
        ({"model": prepared_copy(MODEL)}, "model was prepared before"),
        ({"async_scheduling": True}, "async_scheduling=True is not possible with tensor_parallel_size=2"),
        ({"speculative": DRAFT}, r"speculative\['model'\] is not possible with tensor_parallel_size=2"),
        ({"model": "tiny", "quantization": "int8"}, "quantization='int8' is not possible with tensor_parallel_size=2"),
        ({"device": "cpu"}, "device='cpu' is for a spec"),
        ({"model": "tiny", "device": "meta"}, "device must be 'cpu' or 'cuda' with tensor_parallel_size=2"),
        ({"model": "tiny", "device": "cuda:1"}, "got 'cuda:1': rank i has GPU i"),
        ({"model": "tiny", "device": "gpu"}, "device='gpu' is not a device"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        LLM(**{"model": MODEL, "tensor_parallel_size": 2} | arguments)
    assert "\n" not in str(refused.value)


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ValueError, match="tensor_parallel_size=2 needs as many GPUs, and this machine has 1"):
        LLM("tiny", tensor_parallel_size=2, device="cuda")


def test_one_is_a_model_in_this_process() -> None:
    with LLM(MODEL, tensor_parallel_size=1, num_kvcache_blocks=4) as llm:
        assert llm.model is MODEL
