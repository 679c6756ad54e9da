"""Stage 04, vectorised gather: one pool a layer, and one indexing call instead of a loop over sequences.

What was slow:  to read B sequences in L layers, stage 03 copies block by block: 2LB copies a step to gather, 2LB more
                to append, and the host starts each of them. More sequences mean more work for the host.
The change:     all blocks of a layer lie in one tensor [num_blocks, block_size, H_kv, D]. Two index tensors, block and
                slot of every token, gather K of the whole batch in one call and V in another; one index_put_ for K and
                one for V append the new token of all sequences.
What it gives:  2L indexing calls and 2L index_put_ for any batch. No zeros: the padding is read and masked.
Where it loses: every cached byte is still copied twice a step, by the gather and by the cat before attention, and
                the index tensors are built from Python lists on every step.

Post: "Decode Profiling", the gather that it measures.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .s03_select_append import DenseStep, SelectAppend

KV = tuple[Tensor, Tensor]


class VectorizedGather(SelectAppend):
    """SelectAppend over one pool a layer. Attention over the padded batch stays as it was."""

    name = "s04_vectorized_gather"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        # Not SelectAppend's: that would allocate the blocks one by one.
        Stage.__init__(self, model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        c = self.config
        shape = (c.num_layers, num_blocks, block_size, c.num_kv_heads, c.head_dim)
        self.k_cache = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.v_cache = torch.zeros_like(self.k_cache)

    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        tokens = torch.arange(len(seq), device=k.device)
        blocks = torch.tensor(self.tables.of(seq.seq_id, layer), device=k.device)[tokens // self.block_size]
        self.k_cache[layer][blocks, tokens % self.block_size] = k
        self.v_cache[layer][blocks, tokens % self.block_size] = v

    def build_batched_past(self, seqs: list[Sequence], longest: int) -> list[KV]:
        """For each layer, all sequences' k and v padded to `longest` tokens: [B, H_kv, T, D]."""
        tokens = torch.arange(longest, device=self.model.device)
        slots = tokens % self.block_size  # [T]
        blocks = self.block_ids(seqs, longest).index_select(2, tokens // self.block_size)  # [L, B, T]
        return [
            (k_pool[block, slots].transpose(1, 2), v_pool[block, slots].transpose(1, 2))
            for k_pool, v_pool, block in zip(self.k_cache, self.v_cache, blocks, strict=True)
        ]

    def block_ids(self, seqs: list[Sequence], longest: int) -> Tensor:
        """Blocks of every sequence in every layer [L, B, max_blocks]; shorter rows are padded with block 0."""
        width = self.tables.blocks_for(longest)
        rows = [
            [(self.tables.of(seq.seq_id, layer) + [0] * width)[:width] for seq in seqs]
            for layer in range(self.config.num_layers)
        ]
        return torch.tensor(rows, device=self.model.device)

    def append(self, seqs: list[Sequence], step: DenseStep) -> None:
        blocks, slots = self.slot_mapping(seqs)
        for layer, (k_batch, v_batch) in enumerate(step.presents):
            new = k_batch.size(2) - 1
            self.k_cache[layer][blocks[layer], slots] = k_batch.select(2, new)
            self.v_cache[layer][blocks[layer], slots] = v_batch.select(2, new)

    def slot_mapping(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Where each sequence's new token goes: its block in every layer [L, B], and its slot in that block [B]."""
        places = [divmod(seq.num_cached_tokens, self.block_size) for seq in seqs]
        blocks = [
            [self.tables.of(seq.seq_id, layer)[index] for seq, (index, _) in zip(seqs, places, strict=True)]
            for layer in range(self.config.num_layers)
        ]
        device = self.model.device
        return torch.tensor(blocks, device=device), torch.tensor([slot for _, slot in places], device=device)
