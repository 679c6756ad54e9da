"""DecodeGraphs: the decode step, captured for each size of batch. A step is then its inputs and one call."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from roseinfer.graphs import Graph, capture

from .batch import Batch, BatchBuffers, fill_up, size_for
from .block_manager import BlockManager

Compute = Callable[[Batch], tuple[Tensor, Tensor]]
# On a CPU recording takes as long as twenty steps of a small model, and saves a tenth of each: a size that comes a few
# times only is not worth it.
RECORD_AFTER = 16


class DecodeGraphs:
    """Runs decode steps: Runner.step, or its graph. inputs: the buffers that the batches of all steps are views of.

    On a GPU a size is captured in warm_up or when it first comes, and sizes are few: batches are filled up. On a CPU,
    where padding rows cost more than a graph gains, every size has its own, once it has come RECORD_AFTER times.

    A step that cannot be captured costs the graphs of all sizes that have none yet: they run as they are, and a warning
    says why.
    """

    def __init__(self, step: Compute, inputs: BatchBuffers, max_num_seqs: int, device: torch.device) -> None:
        self.step, self.inputs, self.device = step, inputs, device
        self.on_gpu = device.type == "cuda"
        self.sizes = sizes_up_to(max_num_seqs) if self.on_gpu else list(range(1, max_num_seqs + 1))
        self.capture_after: float = 1 if self.on_gpu else RECORD_AFTER
        self.graphs: dict[int, Graph] = {}
        self._times_seen: Counter[int] = Counter()

    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what `step` gives for a decode batch of one of the sizes.

        On a GPU it must be read or copied before the next step: a graph writes its results to the same memory every
        time.
        """
        size = batch.num_rows
        if size not in self.graphs:
            self._times_seen[size] += 1
            if self._times_seen[size] < self.capture_after or not self.capture(size):
                return self.step(batch)
        return self.graphs[size].replay()

    def warm_up(self, blocks: BlockManager) -> None:
        """Capture every size on a GPU; do nothing elsewhere."""
        if self.on_gpu:
            self.capture_all(blocks)

    def capture_all(self, blocks: BlockManager, batches: Iterable[int] | None = None) -> None:
        """Capture every size that is not yet captured; batches: only the sizes that batches of so many sequences get.

        The largest size comes first, because the others then use its memory.
        """
        sizes = self.sizes if batches is None else [size_for(num_seqs, self.sizes) for num_seqs in batches]
        for size in sorted({*sizes} - self.graphs.keys(), reverse=True):
            fill_up(self.inputs, 0, size, blocks)
            self.inputs.upload()
            if not self.capture(size):
                return

    def capture(self, size: int) -> bool:
        """Capture a step of this size on what the buffers hold: K and V go to the slots that they name.

        Returns whether it is captured. If not, no other size is tried.
        """
        views: dict[str, Any] = self.inputs.views(size, size)[1]
        batch = Batch(**views)
        largest = self.graphs[max(self.graphs)] if self.graphs else None
        try:
            self.graphs[size] = capture(lambda: self.step(batch), self.device, memory=largest)
        except RuntimeError as error:
            self.capture_after = math.inf
            why = str(error).partition("\n")[0]
            warnings.warn(f"decode steps run without a graph where none is captured yet: {why}", stacklevel=2)
            return False
        return True


def sizes_up_to(max_num_seqs: int) -> list[int]:
    """Return 1, 2, 4, 8, 16 and on in steps of 16: few graphs, and never more than 15 rows too many.

    It equals stage 13's buckets_up_to: the library imports no stage, and a stage is read alone.
    """
    small = [1, 2, 4, 8, *range(16, max_num_seqs, 16)]
    return [size for size in small if size < max_num_seqs] + [max_num_seqs]
