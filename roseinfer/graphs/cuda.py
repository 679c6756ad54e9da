"""CudaGraph: a step's kernels, captured once and started again by one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class CudaGraph:
    """A CUDA graph of run_step, which runs on the GPU, takes nothing and returns tensors.

    What run_step reads from outside has to stay where it lies. memory: another graph whose memory and stream this one
    uses, too; then the results of both hold until either is replayed.

    See NVIDIA, "CUDA Programming Guide", on graphs. Raises RuntimeError where the step does what a capture forbids.
    """

    def __init__(self, run_step: Callable[[], Any], memory: CudaGraph | None = None) -> None:
        # First runs allocate, compile kernels and set up libraries, none of which may happen during a capture. They
        # take a stream of their own because what a capture reuses must not be in use by other work. PyTorch keeps freed
        # memory for the stream that had it, so graphs that share memory share the stream.
        self.stream: torch.cuda.Stream = memory.stream if memory else torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                run_step()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.graph = torch.cuda.CUDAGraph()
        pool = memory.graph.pool() if memory else None
        with without_collector(), torch.cuda.graph(self.graph, pool=pool, stream=self.stream):
            self.result = run_step()

    def replay(self) -> Any:
        """Run the step and return its result, in the same memory every time: read or copy it before the next replay."""
        self.graph.replay()
        return self.result


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect Python's garbage before the block, and none inside.

    Garbage may hold an older graph, and no graph may be destroyed while a stream is captured.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
