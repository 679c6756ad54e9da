"""operation: what a compiled loop has to say so that those who listen to PyTorch's operations see it, too.

A loop that Numba compiled runs below PyTorch: its dispatcher, and with it whoever records a step, would not know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily


class OperationMode(TorchDispatchMode):
    """A TorchDispatchMode that is also told of each `operation`: __torch_dispatch__ gets the function as `func`."""


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: to an OperationMode the function is one operation, whatever it asks of PyTorch inside.

    Take the tensors that it reads or writes as arguments: a recorder knows no others."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch._C._len_torch_dispatch_stack() and isinstance(_get_current_dispatch_mode(), OperationMode):
            with _pop_mode_temporarily() as mode, torch._C.DisableTorchFunction():
                return mode.__torch_dispatch__(function, (), args, kwargs)
        return function(*args, **kwargs)

    return call


def name_of(func: Any) -> str:
    """As the profiler calls PyTorch's operations ("aten::add"), and an `operation` by the function's name."""
    return func.name().split(".")[0] if isinstance(func, torch._ops.OpOverload) else func.__name__
