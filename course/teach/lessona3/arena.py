"""Arena: the tensors of one launch, far apart in one buffer of NaN, so that no wrong address goes unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

GAP = 1024  # values of NaN before, between and after the tensors: a wrong offset lands there
WIDTH = 4  # bytes of a value: fp32, or an id as int32


class Place(NamedTuple):
    """A tensor's place in the buffer. start: where its memory begins. size: its values, with those between its rows."""

    start: int
    size: int


class Arena:
    """A buffer of NaN in which the tensors of one launch lie far apart.

    tensors: by name, of fp32 or int32; views keep their strides. device: where the buffer lies. tensors (the attribute)
    are the same values inside the buffer.
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: str = "cpu") -> None:
        sizes = {name: tensor.untyped_storage().nbytes() // WIDTH for name, tensor in tensors.items()}
        self.buffer = torch.full((GAP + sum(size + GAP for size in sizes.values()),), torch.nan, device=device)
        self.own = np.zeros(self.buffer.numel(), dtype=bool)  # which values belong to an element of a tensor
        self.places: dict[str, Place] = {}
        self.tensors: dict[str, Tensor] = {}
        start = GAP
        for name, tensor in tensors.items():
            self.places[name] = place = Place(start, sizes[name])
            memory = self.buffer[start : start + place.size].view(tensor.dtype)
            memory.copy_(tensor.as_strided((place.size,), (1,), 0))
            view = memory.as_strided(tensor.shape, tensor.stride(), start + tensor.storage_offset())
            self.tensors[name] = view
            inside = torch.arange(self.buffer.numel()).as_strided(view.shape, view.stride(), view.storage_offset())
            self.own[inside.numpy()] = True
            start += place.size + GAP

    def positions(self, addresses: np.ndarray) -> np.ndarray:
        """Convert addresses to values from the buffer's start; they are negative or too large outside of it."""
        return (addresses.astype(np.int64).reshape(-1) - self.buffer.data_ptr()) // WIDTH

    def is_own(self, positions: np.ndarray) -> np.ndarray:
        inside = (positions >= 0) & (positions < len(self.own))
        return inside & self.own[np.clip(positions, 0, len(self.own) - 1)]

    def nearest(self, position: int) -> str:
        """Name the tensor whose memory is nearest to a position."""

        def distance(name: str) -> int:
            start, size = self.places[name]
            return max(start - position, position - (start + size - 1), 0)

        return min(self.places, key=distance)

    def name_at(self, position: int) -> str:
        """Name an element as a message does: by its offset, or by its index where the tensor has several dimensions."""
        name = self.nearest(position)
        offset = position - self.places[name].start
        shape = self.tensors[name].shape
        if len(shape) < 2:
            return f"{name}[{offset}]"
        view, place = self.tensors[name], self.places[name]
        offsets = torch.arange(place.size).as_strided(shape, view.stride(), view.storage_offset() - place.start)
        index = (offsets == offset).nonzero()
        return f"{name}[{', '.join(map(str, index[0].tolist()))}]" if len(index) else f"{name} at offset {offset}"
