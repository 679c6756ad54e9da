"""How many aten ops the first post's three phases start, computed from sizes and versions.

Per layer and sequence the append cuts 8 dimensions, K and V together, takes 6 selects and writes 2 copies. So
everything follows from layers x sequences, and the post's tables from 12 x 8: its benchmark decodes at most 8 of its 16
requests in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roseinfer.profiling.slice_rule import Version, slice_dispatches

ALL = slice(None)
MEMSET_BELOW = 32_768  # values: a smaller tensor on a CPU is zeroed without aten::fill_ (ATen's grain size)


@dataclass(frozen=True)
class DecodeBatch:
    """One decode step: its model's sizes, the cached tokens of each sequence, and where it runs.

    version: (major, minor) of torch, None for the one that runs here. Sequences may span several blocks.
    """

    layers: int
    heads: int
    head_dim: int
    block_size: int
    lengths: Sequence[int]
    on_cpu: bool
    version: Version | None = None

    @property
    def writes(self) -> int:
        """Number of copies of the new token: K and V of each sequence in each layer."""
        return self.layers * len(self.lengths) * 2

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def gather_ops(self) -> dict[str, int]:
        """Count the ops of the preallocated gather: out[:, a:b, :] = block[:, 0:b-a, :] for each block, K and V."""
        slices = copies = 0
        for length in self.lengths:
            for start in range(0, length, self.block_size):
                end = min(start + self.block_size, length)
                slices += self._slices((ALL, slice(start, end), ALL), (self.heads, self.longest, self.head_dim))
                slices += self._slices((ALL, slice(0, end - start), ALL), (self.heads, self.block_size, self.head_dim))
                copies += 1
        slices, copies = 2 * self.layers * slices, 2 * self.layers * copies
        values = len(self.lengths) * self.heads * self.longest * self.head_dim
        filled = 0 if self.on_cpu and values < MEMSET_BELOW else 2 * self.layers
        each = dict.fromkeys(("zeros", "zeros_like", "empty", "empty_like", "empty_strided"), self.layers)
        ops = {"slice": slices, "copy_": copies, "select": self.writes, "as_strided": slices + self.writes}
        return _named(ops | each | {"zero_": 2 * self.layers, "fill_": filled})

    def append_ops(self, *, select_first: bool) -> dict[str, int]:
        """Count the ops of appending one token. select_first: selected once a layer, not cut for each sequence."""
        write = self._slices((ALL, 0, ALL), (self.heads, self.block_size, self.head_dim))
        if select_first:
            slices = self.writes * write
            selects = 2 * self.layers + 2 * self.writes  # the step's, then a row and a slot for each
        else:
            step = (len(self.lengths), self.heads, self.longest + 1, self.head_dim)
            cut = self._slices((slice(1, 2), ALL, slice(self.longest, self.longest + 1), ALL), step)
            index = self._slices((0, ALL, 0, ALL), (1, self.heads, 1, self.head_dim))
            slices = self.writes * (cut + index + write)
            selects = 3 * self.writes
        return _named({"slice": slices, "select": selects, "copy_": self.writes, "as_strided": slices + selects})

    def _slices(self, index: tuple[int | slice, ...], shape: tuple[int, ...]) -> int:
        return slice_dispatches(index, shape, self.version)


def _named(ops: dict[str, int]) -> dict[str, int]:
    return {f"aten::{op}": n for op, n in ops.items()}
