"""Stage 01, naive cat: gather every sequence's blocks into a new tensor, pad it, and cat them into a batch.

What was slow:  without a cache, each new token recomputes the whole text.
The change:     keep K and V of every token in blocks of 64 tokens; before each step copy them into one dense
                batch [B, H_kv, T, D] for ordinary attention, T being the longest cached length.
What it gives:  a step computes one token a sequence, and memory is taken block by block as a sequence grows.
Where it loses: all of the cache is copied three times a step, in many tiny operations. With L layers and B equally long
                sequences of one block: 2LB allocations filled with zeros, 2LB copies, 2L cats. A mixed batch adds
                2 zeros and 2 cats for each (layer, shorter sequence).

This module is complete: the dense family (01 to 04) starts here. The scheme is the first post's starting point.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.models import GPT2
from roseinfer.profiling import span
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

KV = tuple[Tensor, Tensor]


class DenseStep:
    """One decode step's attention over a padded batch. Called by the model, one layer after another.

    past: for each layer the cached k and v, [B, H_kv, T, D]. mask [B, 1, 1, T + 1]: True where a key may be read.
    presents: for each layer past k and v and after them the new token's, [B, H_kv, T + 1, D]; filled in by the calls.
    """

    def __init__(self, past: list[KV], mask: Tensor) -> None:
        self.past = past
        self.mask = mask
        self.presents: list[KV] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        past_k, past_v = self.past[layer]
        k = torch.cat([past_k, k.unsqueeze(2)], dim=2)
        v = torch.cat([past_v, v.unsqueeze(2)], dim=2)
        self.presents.append((k, v))
        out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=self.mask, enable_gqa=True)
        return out.squeeze(2)


class NaiveCat(Stage):
    """Blocks kept one by one; a fresh padded tensor for each sequence and layer on every step."""

    name = "s01_naive_cat"

    def __init__(self, model: GPT2, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        # [layer][block] -> (k, v), each [H_kv, block_size, D]
        self.blocks = [[self.new_block() for _ in range(num_blocks)] for _ in range(self.config.num_layers)]

    def new_block(self) -> KV:
        shape = (self.config.num_kv_heads, self.block_size, self.config.head_dim)
        k_block = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        return k_block, torch.zeros_like(k_block)

    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        for start, end, (k_block, v_block) in self.filled_blocks(seq, layer, len(seq)):
            k_block[:, : end - start] = k[start:end].transpose(0, 1)
            v_block[:, : end - start] = v[start:end].transpose(0, 1)

    def filled_blocks(self, seq: Sequence, layer: int, num_tokens: int) -> Iterator[tuple[int, int, KV]]:
        """Yield (start, end, block): tokens start to end of the sequence lie at the front of that block."""
        for i, block_id in enumerate(self.tables.of(seq.seq_id, layer)):
            start = i * self.block_size
            if start >= num_tokens:
                break  # reserved for the token of this step, nothing written yet
            yield start, min(start + self.block_size, num_tokens), self.blocks[layer][block_id]

    def gather_sequence(self, seq: Sequence, layer: int) -> KV:
        """k and v of one sequence's cached tokens, copied into new tensors [1, H_kv, T_i, D]."""
        shape = (1, self.config.num_kv_heads, seq.num_cached_tokens, self.config.head_dim)
        k_seq = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        v_seq = torch.zeros_like(k_seq)
        for start, end, (k_block, v_block) in self.filled_blocks(seq, layer, seq.num_cached_tokens):
            k_seq[0, :, start:end, :] = k_block[:, : end - start, :]
            v_seq[0, :, start:end, :] = v_block[:, : end - start, :]
        return k_seq, v_seq

    def build_batched_past(self, seqs: list[Sequence], longest: int) -> list[KV]:
        """For each layer, all sequences' k and v padded to `longest` tokens: [B, H_kv, T, D]."""
        past = []
        for layer in range(self.config.num_layers):
            ks, vs = [], []
            for seq in seqs:
                k_seq, v_seq = self.gather_sequence(seq, layer)
                if missing := longest - seq.num_cached_tokens:
                    shape = (1, self.config.num_kv_heads, missing, self.config.head_dim)
                    k_pad = torch.zeros(shape, dtype=k_seq.dtype, device=k_seq.device)
                    v_pad = torch.zeros(shape, dtype=v_seq.dtype, device=v_seq.device)
                    k_seq, v_seq = torch.cat([k_seq, k_pad], dim=2), torch.cat([v_seq, v_pad], dim=2)
                ks.append(k_seq)
                vs.append(v_seq)
            past.append((torch.cat(ks), torch.cat(vs)))
        return past

    def build(self, seqs: list[Sequence]) -> DenseStep:
        lengths = torch.tensor([seq.num_cached_tokens for seq in seqs], device=self.model.device)
        longest = max(seq.num_cached_tokens for seq in seqs)
        keys = torch.arange(longest + 1, device=self.model.device)
        # A sequence reads its own cached tokens and the new one, which lies in the last column for all sequences.
        mask = (keys < lengths[:, None]) | (keys == longest)
        with span("roseinfer.decode_step_sessions.build_batched_past"):
            past = self.build_batched_past(seqs, longest)
        return DenseStep(past, mask[:, None, None, :])

    def append(self, seqs: list[Sequence], step: DenseStep) -> None:
        for layer, (k_batch, v_batch) in enumerate(step.presents):
            new = k_batch.size(2) - 1
            for i, seq in enumerate(seqs):
                k_new = k_batch[i : i + 1, :, new : new + 1, :]
                v_new = v_batch[i : i + 1, :, new : new + 1, :]
                self.append_token(seq, layer, k_new[0, :, 0, :], v_new[0, :, 0, :])

    def append_token(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        """Write one token's k and v [H_kv, D] after the sequence's cached tokens."""
        index, slot = divmod(seq.num_cached_tokens, self.block_size)
        k_block, v_block = self.blocks[layer][self.tables.of(seq.seq_id, layer)[index]]
        k_block[:, slot, :] = k
        v_block[:, slot, :] = v
