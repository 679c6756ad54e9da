"""Parts of an index expression that PyTorch turns into an aten::slice: the rule behind the first post's counts.

A range that names its whole dimension, x[0:n], is dropped before it becomes an operator. A bare `:` is not a range
with a known end, and until torch 2.8 it cost one aten::slice that changed nothing; from 2.9 on it costs none. So the
same line of Python has different counts on different versions, while its selects and copies stay the same.
"""

from __future__ import annotations

import torch

Version = tuple[int, int]
COLON_IS_FREE_FROM: Version = (2, 9)


def torch_version() -> Version:
    """Return (major, minor) of the torch that runs here."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def slice_dispatches(index: tuple[int | slice, ...], shape: tuple[int, ...], version: Version | None = None) -> int:
    """Count the aten::slice calls of `x[index]` for x of that shape. index: integers, and slices with step 1.

    version: (major, minor) of torch, by default the one that runs here. Raises ValueError for more indices than
    dimensions, or a kind of index that this rule does not cover.
    """
    if len(index) > len(shape):
        raise ValueError(f"index has {len(index)} parts, shape {shape} has {len(shape)} dimensions")
    return sum(_dispatches(part, size, version or torch_version()) for part, size in zip(index, shape, strict=False))


def _dispatches(part: int | slice, size: int, version: Version) -> int:
    if isinstance(part, int):
        return 0  # an integer is an aten::select
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise ValueError(f"index parts must be integers or slices with step 1, got {part!r}")
    if part == slice(None):
        return int(version < COLON_IS_FREE_FROM)
    return int((part.start or 0, part.stop) != (0, size))
