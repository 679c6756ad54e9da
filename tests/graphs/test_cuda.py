"""What a capture on a GPU does beside the capture itself, tried without one: CUDA's calls are replaced."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from roseinfer.graphs.cuda import CudaGraph


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *args, **kwargs: nullcontext())


class Ring:
    """Refers to itself, so that the collector alone frees it, as an engine that holds its graphs."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("was_enabled", [True, False])
def test_nothing_is_collected_while_a_step_is_captured(no_cuda, was_enabled):
    seen = []

    def step() -> None:
        seen.append((gc.isenabled(), gone() is None))
        if len(seen) == 3:  # after two runs that are not captured
            raise RuntimeError("what a capture forbids")

    gc.freeze()  # what is there already need not be looked through
    gone = weakref.ref(Ring())
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="forbids"):
            CudaGraph(step)
        assert gc.isenabled() == was_enabled, "the caller's own choice is kept, after an error too"
    finally:
        gc.unfreeze()
        gc.enable()
    assert seen[-1] == (False, True), "collected before the capture, and not inside"


def test_graphs_that_share_memory_are_captured_on_one_stream(no_cuda, monkeypatch):
    """Runs before a capture leave freed memory to their stream, and the capture finds it there."""
    entered, captured = [], []
    monkeypatch.setattr(torch.cuda, "Stream", MagicMock(side_effect=lambda: MagicMock()))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(entered.append(stream)))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **given: nullcontext(captured.append(given)))
    first = CudaGraph(lambda: None)
    second = CudaGraph(lambda: None, memory=first)
    third = CudaGraph(lambda: None, memory=second)
    assert first.stream is second.stream is third.stream and torch.cuda.Stream.call_count == 1
    assert entered == [given["stream"] for given in captured] == [first.stream] * 3
    pools = [None, first.graph.pool(), second.graph.pool()]
    assert [given["pool"] for given in captured] == pools
