"""What checkers of answers that return tensors share: the pair taken apart, and what was handed in left as it was."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .wrong import Wrong


def named_tensors(got: object, *names: str) -> dict[str, Tensor]:
    """What the answer returned by name. Raises Wrong unless it is so many tensors, in a tuple or a list."""
    if not isinstance(got, (tuple, list)) or len(got) != len(names):
        raise Wrong(f"expected ({', '.join(names)}), got {type(got).__name__}")
    if not all(map(torch.is_tensor, got)):
        kinds = " and ".join(type(part).__name__ for part in got)
        raise Wrong(f"expected tensors ({', '.join(names)}), got {kinds}")
    return dict(zip(names, got, strict=True))


def require_unchanged(before: Iterable[Tensor], after: Iterable[Tensor], names: Iterable[str], why: str = "") -> None:
    """Raises Wrong, naming the first tensor that the answer has changed. NaN is equal to NaN."""
    for old, new, name in zip(before, after, names, strict=True):
        if not torch.equal(old.nan_to_num(12345.0), new.nan_to_num(12345.0)):
            raise Wrong(f"{name} was handed in, and you have changed it{why}")
