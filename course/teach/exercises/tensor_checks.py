"""Checks of answers that return tensors: take the returned pair apart, and see that the inputs did not change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .drawn import Call
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


def on_tensors(make: Callable[..., tuple[Any, ...]], *names: str, why: str = "") -> Call:
    """Make a call that hands make(*case) to an answer. It raises Wrong if the answer changes a tensor among them.

    names: of the tensors. why: what is said after the name of the one that is changed.
    """

    def call(answer: Callable[..., Any], *case: Any) -> Any:
        before, handed = make(*case), make(*case)
        got = answer(*handed)
        require_unchanged(filter(torch.is_tensor, before), filter(torch.is_tensor, handed), names, why)
        return got

    return call
