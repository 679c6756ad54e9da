"""Named spans: how a part of a step gets its name in a trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import record_function


@contextmanager
def span(name: str) -> Iterator[None]:
    """Label the enclosed code `name` in any torch.profiler trace.

    With ROSEINFER_NVTX=1 on a CUDA machine the name is also pushed to NVTX, for Nsight Systems; otherwise
    NVTX is never called. Outside a profiler a span costs a few microseconds.
    """
    to_nvtx = os.environ.get("ROSEINFER_NVTX") == "1" and torch.cuda.is_available()
    if to_nvtx:
        torch.cuda.nvtx.range_push(name)
    try:
        with record_function(name):
            yield
    finally:
        if to_nvtx:
            torch.cuda.nvtx.range_pop()
