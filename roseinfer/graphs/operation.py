"""operation: makes a compiled loop visible to everything that records PyTorch's operations.

A loop that Numba compiled does not pass PyTorch's dispatcher, so a recorder of steps would not see it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode(TorchDispatchMode):
    """A TorchDispatchMode that is also told of each `operation`. Subclasses implement `on_operation`."""

    def __init__(self) -> None:
        super().__init__()
        self.around: OperationMode | None = None
        self.is_paused = False

    def __enter__(self) -> OperationMode:
        self.around, _this_thread.mode = _this_thread.mode, self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _this_thread.mode = self.around
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self.is_paused:
            return func(*args, **(kwargs or {}))
        return self.on_operation(func, args, kwargs or {})

    def on_operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call `func`, an operation of PyTorch or a function that counts as one, and return its result."""
        raise NotImplementedError


class _ThisThread(threading.local):
    mode: OperationMode | None = None
    num_inside = 0  # operations that are running, one inside another


_this_thread = _ThisThread()


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that an OperationMode sees it as one operation, not as what it asks of PyTorch inside.

    Take the tensors that it reads or writes as arguments: a recorder knows no others.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        mode = _this_thread.mode
        if mode is None:
            return function(*args, **kwargs)
        _this_thread.mode, mode.is_paused = mode.around, True
        _this_thread.num_inside += 1
        try:
            return mode.on_operation(function, args, kwargs)
        finally:
            _this_thread.num_inside -= 1
            _this_thread.mode, mode.is_paused = mode, False

    return call


def is_inside_operation() -> bool:
    """Whether an `operation` runs on this thread, and a mode has been told of it."""
    return _this_thread.num_inside > 0


def name_of(func: Any) -> str:
    """Return the name of PyTorch's operation as in the profiler ("aten::add"), or of an `operation`'s function."""
    return func.name().split(".")[0] if isinstance(func, torch._ops.OpOverload) else func.__name__


def writes_to_its_arguments(func: Any) -> bool:
    """Whether PyTorch's operation `func` writes to its arguments, as add_ does. Its schema has no public name."""
    return func._schema.is_mutable
