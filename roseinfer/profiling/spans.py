"""Named spans: how a part of a step gets its name in a trace, and who else hears of it."""

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

    def exit(self) -> None: ...


# Of the thread that set it: a stage that another thread runs at the same time is not heard.
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


class span:
    """`with span(name):` labels the enclosed code `name` in any torch.profiler trace.

    With ROSEINFER_NVTX=1 on a CUDA machine the name is also pushed to NVTX, for Nsight Systems; otherwise
    NVTX is never called. Outside a profiler a span costs a few microseconds.
    """

    __slots__ = ("_listener", "_name", "_record", "_to_nvtx")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._to_nvtx = os.environ.get("ROSEINFER_NVTX") == "1" and torch.cuda.is_available()
        if self._to_nvtx:
            torch.cuda.nvtx.range_push(self._name)
        self._listener = _listener.get()
        if self._listener is not None:
            self._listener.enter(self._name)
        self._record = record_function(self._name)
        self._record.__enter__()

    def __exit__(self, *error: object) -> None:
        self._record.__exit__(*error)
        if self._listener is not None:
            self._listener.exit()
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
