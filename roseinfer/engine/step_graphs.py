"""StepGraphs: steps of a few shapes, captured. Filled up to one of them, a step is its inputs and one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from roseinfer.graphs import Graph, capture

from .batch import Batch, BatchBuffers, StepShape, fill_up
from .block_manager import BlockManager

Compute = Callable[[Batch], tuple[Tensor, Tensor]]
CHUNKS = (64, 128, 256, 512)  # tokens of captured steps with prompts: in longer ones launches should hardly count
NOTHING = StepShape(0, 0, 0, 0)


class StepGraphs:
    """Runs steps: Runner.compute, or its graph. inputs: the buffers that the batches of all steps are views of.

    sizes: the shapes that have a graph, for steps that decode, steps that verify drafts, and steps with prompts. A
    graph is captured in warm_up or when its shape first comes.

    A step that cannot be captured costs the graphs of all shapes that have none yet: they run as they are, and a
    warning says why.
    """

    def __init__(self, compute: Compute, inputs: BatchBuffers, blocks: BlockManager, device: torch.device) -> None:
        self.compute, self.inputs, self.blocks, self.device = compute, inputs, blocks, device
        max_num_seqs, max_blocks = blocks.table.ids.shape
        # Padding is one sequence, so a row of the block table must have room for it.
        most_tokens = min(len(inputs.host["token_ids"]), max_blocks * blocks.block_size)
        self.sizes = step_shapes(max_num_seqs, most_tokens, len(inputs.last_tokens))
        self.can_capture = True
        self.graphs: dict[StepShape, Graph] = {}

    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what `compute` gives for a batch.

        It must be read or copied before the next step: a graph writes its results to the same memory every time.
        """
        shape = batch.shape
        if shape in self.graphs or (self.can_capture and shape in self.sizes and self.capture(batch)):
            return self.graphs[shape].replay()
        return self.compute(batch)

    def warm_up(self) -> None:
        """Capture every shape that is not yet captured, the largest first: the others then use its memory."""
        left = {*self.sizes} - self.graphs.keys()
        for size in sorted(left, key=lambda size: (size.num_tokens, size), reverse=True):
            self.inputs.begin()
            inputs: dict[str, Any] = fill_up(self.inputs, NOTHING, size, self.blocks)
            self.inputs.upload()
            if not self.capture(Batch(**inputs, max_query_len=size.max_query_len)):
                return

    def capture(self, batch: Batch) -> bool:
        """Capture a step of this batch's shape on what the buffers hold: K and V go to the slots that they name.

        Returns whether it is captured. If not, no other shape is tried.
        """
        # In a replay any sequence's token may come from the step before.
        batch = replace(batch, num_fed=min(len(batch.sources), len(batch.token_ids)))
        shared = next(iter(self.graphs.values()), None)
        try:
            self.graphs[batch.shape] = capture(lambda: self.compute(batch), self.device, memory=shared)
        except RuntimeError as error:
            self.can_capture = False
            why = str(error).partition("\n")[0]
            warnings.warn(f"steps run without a graph where none is captured yet: {why}", stacklevel=2)
            return False
        return True


def step_shapes(max_num_seqs: int, most_tokens: int, max_num_rows: int) -> list[StepShape]:
    """Return the shapes that get a graph, sorted. most_tokens: of a step with padding that is one sequence."""
    sizes = sizes_up_to(max_num_seqs)
    decodes = [StepShape(1, n, n, n) for n in sizes]
    each = max_num_rows // max_num_seqs  # with drafts a sequence chooses several tokens
    verifying = [StepShape(each, n * each, n + 1, n * each) for n in sizes if 1 < each and n * each <= CHUNKS[-1]]
    chunks = [StepShape(n, n, max_num_seqs + 1, min(n, max_num_rows)) for n in CHUNKS]
    return sorted(decodes + [shape for shape in verifying + chunks if shape.num_tokens <= most_tokens])


def sizes_up_to(max_num_seqs: int) -> list[int]:
    """Return 1, 2, 4, 8, 16 and on in steps of 16: few graphs, and never more than 15 rows too many.

    It equals stage 13's buckets_up_to: the library imports no stage, and a stage is read alone.
    """
    small = [1, 2, 4, 8, *range(16, max_num_seqs, 16)]
    return [size for size in small if size < max_num_seqs] + [max_num_seqs]
