"""DecodeGraphs: the decode step, captured for each size of batch. A step is then its inputs and one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from roseinfer.graphs import Graph, capture

from .batch import Batch, BatchBuffers, fill_up
from .block_manager import BlockManager

Compute = Callable[[Batch], tuple[Tensor, Tensor]]


class DecodeGraphs:
    """Runs decode steps: Runner.compute, or its graph. inputs: the buffers that the batches of all steps are views of.

    A size is captured in warm_up or when it first comes, and sizes are few: batches are filled up.

    A step that cannot be captured costs the graphs of all sizes that have none yet: they run as they are, and a warning
    says why.
    """

    def __init__(self, compute: Compute, inputs: BatchBuffers, max_num_seqs: int, device: torch.device) -> None:
        self.compute, self.inputs, self.device = compute, inputs, device
        self.sizes = sizes_up_to(max_num_seqs)
        self.can_capture = True
        self.graphs: dict[int, Graph] = {}

    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what `compute` gives for a decode batch of one of the sizes.

        It must be read or copied before the next step: a graph writes its results to the same memory every time.
        """
        size = batch.num_rows
        if size in self.graphs or (self.can_capture and self.capture(size)):
            return self.graphs[size].replay()
        return self.compute(batch)

    def warm_up(self, blocks: BlockManager) -> None:
        """Capture every size that is not yet captured, the largest first: the others then use its memory."""
        for size in sorted({*self.sizes} - self.graphs.keys(), reverse=True):
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
            self.graphs[size] = capture(lambda: self.compute(batch), self.device, memory=largest)
        except RuntimeError as error:
            self.can_capture = False
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
