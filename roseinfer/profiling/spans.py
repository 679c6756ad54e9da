"""Named spans: how a part of a step gets its name in a trace, and how others listen to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch.profiler import record_function


class Listener(Protocol):
    """Hears of every span as it begins and ends, those inside others too."""

    def enter(self, name: str) -> None: ...

    def exit(self, name: str) -> None: ...


# The environment is read once: a span begins several times in a step.
WANTS_NVTX = os.environ.get("ROSEINFER_NVTX") == "1"

# Of the thread that set it: a stage that another thread runs at the same time is not heard.
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


class span:
    """Label the code inside `with span(name):` as `name` in any torch.profiler trace.

    If ROSEINFER_NVTX=1 was set when Python started, a CUDA machine also pushes the name to NVTX, for Nsight Systems;
    otherwise NVTX is never called. Outside a profiler a span costs about a microsecond.
    """

    __slots__ = ("_listener", "_name", "_record", "_to_nvtx")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._to_nvtx = WANTS_NVTX and torch.cuda.is_available()
        if self._to_nvtx:
            torch.cuda.nvtx.range_push(self._name)
        self._listener = _listener.get()
        if self._listener is not None:
            self._listener.enter(self._name)
        # Asked first, because a record that no profiler reads takes as long as a small operation.
        self._record = record_function(self._name) if torch.autograd._profiler_enabled() else None
        if self._record is not None:
            self._record.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._record is not None:
            self._record.__exit__(*error)
        if self._listener is not None:
            self._listener.exit(self._name)
        if self._to_nvtx:
            torch.cuda.nvtx.range_pop()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear of the spans that this thread enters inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
