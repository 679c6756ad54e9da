"""Numba's parallel loops beside PyTorch: kept on disk where there is room, and run by the threads that PyTorch has.

Numba looks for OpenMP when it starts its threads. PyTorch has brought one by then, so one set of threads serves both;
two would spin beside each other, each waiting for its own next loop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

PATIENCE = 5.0  # seconds that someone at a terminal waits without being told why

# Of Numba's ways to run threads, the one that is always there ends the process when two callers meet.
one_caller = threading.Lock()


def compiled(*signatures: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile like numba.njit, and keep the machine code on disk.

    Where no folder can be written every process compiles its own.
    signatures: compiled for these argument types now; none: for each new types of arguments when they first come.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if signatures and options.get("parallel"):
            start_threads()  # as reading a parallel loop from disk does, after which PyTorch would have as many
        given: list[Any] = [list(signatures)] if signatures else []
        try:
            return numba.njit(*given, cache=True, **options)(function)
        except (RuntimeError, OSError):
            return numba.njit(*given, **options)(function)

    return decorate


def run_parallel(loop: Callable[..., None], *args: Any) -> None:
    """Call a compiled parallel loop, with as many threads as PyTorch uses itself."""
    start_threads()
    with one_caller:
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        loop(*args)


def bits(x: Tensor) -> np.ndarray:
    """Return a tensor's memory as Numba takes it.

    NumPy has no bfloat16, so each 16-bit type goes as an integer of its own, and `as_float` knows them apart: int16 is
    bfloat16, uint16 is float16.
    """
    as_integers = {torch.bfloat16: torch.int16, torch.float16: torch.uint16}
    return x.view(as_integers.get(x.dtype, x.dtype)).numpy()


@cache
def start_threads() -> None:
    """Start Numba's threads, and restore PyTorch's number: Numba sets it in OpenMP when it starts its own."""
    chosen = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(chosen)


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Print what takes so long if stderr is a terminal. A log or a notebook gets nothing."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(PATIENCE, print, [f"roseinfer: {what}"], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
