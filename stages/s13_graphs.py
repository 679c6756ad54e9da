"""Stage 13, graphs: a decode step is captured once for each batch size, and then replayed.

What was slow:  the host. It starts every operation of every step: the model's modules, PyTorch's checks, a launch for
                each kernel, though every step is the same. Where the device is fast or the batch small, this takes
                longer than the computation.
The change:     a step whose inputs are always at the same addresses can be a graph: on a GPU the kernels with their
                addresses (a CUDA graph), on a CPU the operations with their tensors. It is captured once. A step then
                writes its inputs and replays the graph, which also chooses the greedy tokens.
What it gives:  one call instead of a launch for each kernel. On a CPU the operations are still started one by one, but
                no module runs, and views are created only once.
Where it loses: a graph has one size. So a batch is padded to the next size; the padding rows write to a block of their
                own. Each size is captured when it is first needed, which takes as long as several steps, and its graph
                stays in memory. What depends on values on the host cannot be in it: sampled rows are chosen after it,
                and prompts run without a graph.

A value that the step takes from Python stays what it was at the capture, without any error;
roseinfer.profiling.replay finds such values. Sizes and padding are as in vLLM and nano-vllm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from roseinfer.arguments import require_count
from roseinfer.blocks import BlockTables
from roseinfer.graphs import Graph, capture
from roseinfer.models import Model
from roseinfer.profiling import span
from roseinfer.sequence import Sequence

from .s12_packed_weights import PackedWeights


class Graphs(PackedWeights):
    """PackedWeights with a decode step captured for each bucket, a size that batches are padded to."""

    name = "s13_graphs"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        require_count("num_blocks", num_blocks, at_least=1)
        # One block more than sequences can get: padding rows write their K and V there.
        super().__init__(model, num_blocks=num_blocks + 1, block_size=block_size, max_num_seqs=max_num_seqs)
        self.tables = BlockTables(1, num_blocks, block_size)
        self.dummy_block = num_blocks
        self.buckets = buckets_up_to(max_num_seqs)
        self.graphs: dict[int, Graph] = {}

    @torch.inference_mode()
    def decode(self, seqs: list[Sequence]) -> Tensor:
        with span("roseinfer.decode_step_sessions.total"):
            logits = self.replay(seqs)[0].clone()  # the next replay writes to the same memory
            advance(seqs)
        return logits

    @torch.inference_mode()
    def next_tokens(self, seqs: list[Sequence]) -> list[int]:
        with span("roseinfer.decode_step_sessions.total"):
            logits, tokens = self.replay(seqs)
            if any(seq.params.temperature > 0 for seq in seqs):
                tokens = self.choose(logits, seqs)
            token_ids = tokens.tolist()  # the one time that the host waits
            if -1 in token_ids:
                row = token_ids.index(-1)
                raise ValueError(f"logits must be finite to sample from them, row {row} has NaN or infinity")
            advance(seqs)
        return token_ids

    def replay(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        """One decode step: logits [B, V] and greedy token ids [B]. The caller calls advance afterwards."""
        self._check_decodable(seqs)
        self.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
        bucket = self.buckets[bisect_left(self.buckets, len(seqs))]
        self.write_inputs(seqs, [1] * len(seqs))
        self.write_padding(len(seqs), bucket)
        self.write_tables(seqs, [1] * len(seqs))
        with span("roseinfer.model.forward"):
            logits, tokens = self.graph_of(bucket).replay()
        return logits[: len(seqs)], tokens[: len(seqs)]

    def write_padding(self, num_seqs: int, bucket: int) -> None:
        """Rows num_seqs to bucket: each a token at position 0 of its own sequence, all in the dummy block."""
        rows, host = slice(num_seqs, bucket), self.inputs_on_host
        host["token_ids"][rows] = 0
        host["positions"][rows] = 0
        host["slot_mapping"][rows] = self.dummy_block * self.block_size
        host["query_start"][num_seqs + 1 : bucket + 1] = np.arange(num_seqs + 1, bucket + 1)
        host["context_lens"][rows] = 1
        host["block_tables"][rows, 0] = self.dummy_block

    def graph_of(self, bucket: int) -> Graph:
        """The graph of a bucket, captured if new. A capture writes K and V of the current inputs, to their slots."""
        if bucket not in self.graphs:
            self.graphs[bucket] = capture(self.static_step(bucket), self.model.device)
        return self.graphs[bucket]

    def static_step(self, bucket: int) -> Callable[[], tuple[Tensor, Tensor]]:
        """The step as a function without arguments: all its inputs are in buffers, and all sizes are fixed."""
        inputs = self.inputs_on_device
        token_ids, positions = inputs["token_ids"][:bucket], inputs["positions"][:bucket]
        slot_mapping, query_start = inputs["slot_mapping"][:bucket], inputs["query_start"][: bucket + 1]
        context_lens, block_tables = inputs["context_lens"][:bucket], inputs["block_tables"][:bucket]
        out = self.attended[:bucket]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k_cache, v_cache = self.pool[:, layer]
            return self.attention(q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables, out)

        def step() -> tuple[Tensor, Tensor]:
            logits = self.model.logits(self.model(token_ids, positions, attend))
            largest, tokens = logits.max(dim=-1)  # the first of equal ones
            return logits, torch.where(largest.isfinite(), tokens, -1)  # -1 for a row with NaN or infinity

        return step


def advance(seqs: list[Sequence]) -> None:
    """Called last, when no error can follow: after an error, the step is repeated and writes to the same slots."""
    for seq in seqs:
        seq.num_cached_tokens += 1


def buckets_up_to(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, 16 and on in steps of 16: few graphs, and at most 15 padding rows."""
    small = [1, 2, 4, 8, *range(16, max_num_seqs, 16)]
    return [bucket for bucket in small if bucket < max_num_seqs] + [max_num_seqs]
