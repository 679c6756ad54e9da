"""Stage 02, preallocated gather: one zeroed batch tensor a layer, filled in place.

What was slow:  stage 01 makes two zeroed tensors for each (layer, sequence), pads the shorter ones, and then copies
                everything once more in cat: 2LB allocations and 2L cats a step for equal lengths, more for mixed ones.
The change:     allocate the padded batch [B, H_kv, T, D] once a layer, and gather each sequence straight into its row.
What it gives:  no cat in the gather and 2L allocations for any batch; each cached byte is gathered by one copy
                instead of two.
Where it loses: there are still 2 copies for each (layer, sequence, block), and the batch is still filled with zeros
                that are then overwritten. One long sequence makes the padded batch large for all.

Post: "Performance", the step that removes the concat.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.sequence import Sequence

from .s01_naive_cat import KV, DenseStep, NaiveCat

__all__ = ["KV", "DenseStep", "PreallocGather"]  # what the next stage of the family builds on


class PreallocGather(NaiveCat):
    """NaiveCat with the gather writing into a batch that is already there."""

    name = "s02_prealloc_gather"

    def build_batched_past(self, seqs: list[Sequence], longest: int) -> list[KV]:
        """For each layer, all sequences' k and v padded to `longest` tokens: [B, H_kv, T, D]."""
        shape = (len(seqs), self.config.num_kv_heads, longest, self.config.head_dim)
        past = []
        for layer in range(self.config.num_layers):
            k_batch = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
            v_batch = torch.zeros_like(k_batch)
            for i, seq in enumerate(seqs):
                self.gather_sequence_into(seq, layer, k_batch[i], v_batch[i])
            past.append((k_batch, v_batch))
        return past

    def gather_sequence_into(self, seq: Sequence, layer: int, out_k: Tensor, out_v: Tensor) -> None:
        """Copy one sequence's cached k and v to the front of out_k and out_v [H_kv, T, D]."""
        for start, end, (k_block, v_block) in self.filled_blocks(seq, layer, seq.num_cached_tokens):
            out_k[:, start:end, :] = k_block[:, : end - start, :]
            out_v[:, start:end, :] = v_block[:, : end - start, :]
