"""Checks of answers that return tensors: take the returned pair apart, and see that the inputs did not change."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .explain import explain_tensor
from .wrong import Wrong


def named_tensors(got: object, *names: str) -> dict[str, Tensor]:
    """Name the tensors that the answer returned. Raises Wrong unless it is a tuple or a list of as many tensors."""
    if not isinstance(got, (tuple, list)) or len(got) != len(names):
        raise Wrong(f"expected ({', '.join(names)}), got {type(got).__name__}")
    if not all(map(torch.is_tensor, got)):
        kinds = " and ".join(type(part).__name__ for part in got)
        raise Wrong(f"expected tensors ({', '.join(names)}), got {kinds}")
    return dict(zip(names, got, strict=True))


def explain_exactly(got: object, want: Tensor) -> str | None:
    """Say what is wrong with a tensor of copied values, which no arithmetic may round; None if nothing is."""
    message = explain_tensor(got, want, rtol=0.0, atol=0.0)
    rounded = message and explain_tensor(got, want) is None
    return "the values are rounded: on their way they were in a smaller dtype" if rounded else message


def require_unchanged(before: Iterable[Tensor], after: Iterable[Tensor], names: Iterable[str], why: str = "") -> None:
    """Raise Wrong, naming the first tensor that the answer has changed. NaN is equal to NaN."""
    for old, new, name in zip(before, after, names, strict=True):
        if not torch.equal(old.nan_to_num(12345.0), new.nan_to_num(12345.0)):
            raise Wrong(f"{name} was handed in, and you have changed it{why}")
