"""Exact facts of one step: how often the host reads numbers out of tensors, and how many bytes that takes.

On a GPU each read is a wait: the host stands still until the device has computed everything it was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .facts import Facts, HasFacts

VALUES = {
    Tensor.tolist,
    Tensor.item,
    Tensor.cpu,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__bool__,
    Tensor.__index__,
    Tensor.__complex__,
}
TRUTHS = {
    torch.equal,
    torch.allclose,
    torch.is_nonzero,
    Tensor.equal,
    Tensor.allclose,
    Tensor.is_nonzero,
    Tensor.__contains__,
}
SHAPES = {torch.nonzero, torch.masked_select, torch.unique, Tensor.nonzero, Tensor.masked_select, Tensor.unique}
TRUTH_BYTES, SHAPE_BYTES = 1, 8  # a bool; how many elements there are, an int64


@dataclass
class HostReads(HasFacts):
    """Host reads of one step. by_call: what was called -> how often. nbytes: the bytes read in all."""

    by_call: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0

    @property
    def reads(self) -> int:
        return self.by_call.total()

    def facts(self) -> Facts:
        import pandas as pd

        rows = pd.DataFrame(sorted(self.by_call.items()), columns=["call", "reads"])
        title = f"{self.reads} reads of {self.nbytes:,} bytes in all"
        return Facts(rows, exact=["call", "reads"], title=title)


def host_reads(run_step: Callable[[], object]) -> HostReads:
    """Count the host's reads in one call of `run_step`. It counts calls, so a CPU gives the same number as a GPU.

    Counted: values (tolist, item, int, float, bool, cpu), truths (torch.equal, `x in tensor`), and shapes that the
    device has to tell (nonzero, an index of booleans). Not counted: numpy(), which only a tensor of the CPU has, and
    what an op reads inside itself. Errors in `run_step` propagate.
    """
    counter = _ReadCounter()
    with counter:
        run_step()
    return counter.found


class _ReadCounter(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found = HostReads()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (nbytes := _bytes_read(func, args)) is not None:
            self.found.by_call[func.__name__] += 1
            self.found.nbytes += nbytes
        return func(*args, **(kwargs or {}))


def _bytes_read(func: Any, args: Any) -> int | None:
    """Return the bytes that a call reads; None for a call that reads nothing."""
    if func in VALUES:
        return args[0].nbytes
    if func in TRUTHS:
        return TRUTH_BYTES
    if func in SHAPES or (func is torch.where and len(args) == 1):
        return SHAPE_BYTES
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(part, Tensor) and part.dtype == torch.bool for part in index):
            return SHAPE_BYTES
    return None
