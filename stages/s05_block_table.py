"""Stage 05, block tables: attention reads the blocks where they lie, and nothing is gathered.

What was slow:  stage 04 copies every cached byte of the batch twice a step, padding included, to give attention the
                dense tensor that it needs, and attention reads it a third time.
The change:     attention takes the pool and a block table, [B, max_blocks] block ids for each layer, and goes through a
                sequence's blocks with an online softmax. The host builds the tables of all layers in one buffer
                [L, B, max_blocks] and sends it in one copy. The buffer is pinned: the system keeps its pages in
                place, so a GPU copies from it while the host goes on.
What it gives:  no gather, no padded batch, no attention mask. Outside attention, no cost grows with the context.
Where it loses: the tables are rebuilt from Python lists on every step: L rows for each sequence, nearly all of them
                the same as in the step before. And this attention is written in PyTorch, about twenty operations a
                block, and copies each block to read it. The kernel of stage 07 is tested against it.

This module is complete: the paged family starts here. Paged attention: Kwon et al., "Efficient Memory Management for
Large Language Model Serving with PagedAttention", 2023. Online softmax: Milakov and Gimelshein, 2018.
Post: "Paged Attention Block Table Cache", the state before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.profiling import span
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage


def paged_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor
) -> Tensor:
    """Attention of B new tokens, each over its sequence's blocks and itself; returns [B, H, D] in q's dtype.

    q [B, H, D]; k, v [B, H_kv, D] of the new tokens, not in the cache yet. k_cache, v_cache [num_blocks, block_size,
    H_kv, D]. block_table [B, max_blocks]: row i names the blocks of sequence i in token order; entries after them
    are ignored, as are slots from context_lens [B] on, the number of cached tokens (0 or more). The loop goes over
    every column of the table, so a narrow table saves time.

    Accumulates in fp32, block by block. The new token is the softmax's first element, so the softmax is never empty.
    """
    batch_size, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    grouped = q.float().view(batch_size, num_kv_heads, num_heads // num_kv_heads, head_dim) * head_dim**-0.5
    top = torch.einsum("bhgd,bhd->bhg", grouped, k.float())  # the largest score so far
    total = torch.ones_like(top)  # sum of exp(score - top)
    out = v.float().unsqueeze(2).expand_as(grouped)  # sum of exp(score - top) * v
    slots = torch.arange(block_size, device=q.device)
    for index in range(block_table.size(1)):
        cached = index * block_size + slots < context_lens[:, None]  # [B, block_size]
        blocks = torch.where(cached[:, 0], block_table[:, index], 0)
        k_block, v_block = k_cache[blocks].float(), v_cache[blocks].float()  # [B, block_size, H_kv, D]
        scores = torch.einsum("bhgd,bshd->bhgs", grouped, k_block)
        scores = scores.masked_fill(~cached[:, None, None, :], float("-inf"))
        new_top = torch.maximum(top, scores.amax(-1))
        weights = torch.exp(scores - new_top[..., None])
        shrink = torch.exp(top - new_top)  # rescales the sums, which are relative to the old top
        # A slot that was never written may hold NaN, and 0 x NaN is NaN.
        v_block = v_block.masked_fill(~cached[:, :, None, None], 0.0)
        out = out * shrink[..., None] + torch.einsum("bhgs,bshd->bhgd", weights, v_block)
        total = total * shrink + weights.sum(-1)
        top = new_top
    return (out / total[..., None]).view_as(q).to(q.dtype)


class PagedStep:
    """One decode step's attention. Called by the model, one layer after another; keeps each layer's new k and v.

    block_tables [L, B, max_blocks] and context_lens [B], on the model's device.
    """

    def __init__(self, stage: BlockTable, block_tables: Tensor, context_lens: Tensor) -> None:
        self.stage = stage
        self.block_tables = block_tables
        self.context_lens = context_lens
        self.new: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.new.append((k, v))
        stage = self.stage
        return stage.attention(
            q, k, v, stage.k_cache[layer], stage.v_cache[layer], self.block_tables[layer], self.context_lens
        )


class BlockTable(Stage):
    """A pool for each layer, read through block tables that are built on every step."""

    name = "s05_block_table"
    attention = staticmethod(paged_attention_reference)

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        c, on_gpu = self.config, model.device.type == "cuda"
        pool = (c.num_layers, num_blocks, block_size, c.num_kv_heads, c.head_dim)
        self.k_cache = torch.zeros(pool, dtype=model.dtype, device=model.device)
        self.v_cache = torch.zeros_like(self.k_cache)
        self.max_blocks = min(num_blocks, self.tables.blocks_for(c.max_model_len))  # of one sequence
        # Flat, so that the tables of any batch are contiguous in it: a strided copy to the device would be neither a
        # single copy nor asynchronous.
        size = c.num_layers * max_num_seqs * self.max_blocks
        self.host_buffer = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.device_buffer = torch.zeros(size, dtype=torch.int32, device=model.device)
        self.copied = torch.cuda.Event() if on_gpu else None

    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        tokens = torch.arange(len(seq), device=k.device)
        blocks = torch.tensor(self.tables.of(seq.seq_id, layer), device=k.device)[tokens // self.block_size]
        self.k_cache[layer][blocks, tokens % self.block_size] = k
        self.v_cache[layer][blocks, tokens % self.block_size] = v

    def build(self, seqs: list[Sequence]) -> PagedStep:
        host_tables, block_tables = self.tables_of(self.host_buffer, seqs), self.tables_of(self.device_buffer, seqs)
        if self.copied:
            self.copied.synchronize()  # the last step's copy may still be reading the host buffer
        with span("roseinfer.decode_step_sessions.build_block_tables"):
            self.build_block_tables(seqs, host_tables)
        with span("roseinfer.decode_step_sessions.h2d_block_tables"):
            block_tables.copy_(host_tables, non_blocking=True)
            if self.copied:
                self.copied.record()
        lengths = [seq.num_cached_tokens for seq in seqs]
        used = self.tables.blocks_for(max(lengths) + 1)  # columns, the new token's block included
        context_lens = torch.tensor(lengths, dtype=torch.int32, device=self.model.device)
        return PagedStep(self, block_tables[:, :, :used], context_lens)

    def tables_of(self, buffer: Tensor, seqs: list[Sequence]) -> Tensor:
        """The front of a buffer as the tables of a batch [L, B, max_blocks], contiguous."""
        shape = (self.tables.num_tables, len(seqs), self.max_blocks)
        return buffer[: shape[0] * shape[1] * shape[2]].view(shape)

    def build_block_tables(self, seqs: list[Sequence], out: Tensor) -> None:
        """Write the block ids of every sequence in every layer to out [L, B, max_blocks], zeros after them."""
        for layer, table in enumerate(out):
            rows = [self.padded_row(self.tables.of(seq.seq_id, layer)) for seq in seqs]
            table.copy_(torch.tensor(rows, dtype=torch.int32))

    def padded_row(self, blocks: list[int]) -> list[int]:
        """A sequence's block ids, padded to max_blocks. Raises ValueError when there are more: none is cut off."""
        if len(blocks) > self.max_blocks:
            raise ValueError(f"blocks must be at most max_blocks={self.max_blocks}, got {len(blocks)}")
        return blocks + [0] * (self.max_blocks - len(blocks))

    def append(self, seqs: list[Sequence], step: PagedStep) -> None:
        lengths = step.context_lens.long()
        index = (lengths // self.block_size)[None, :, None].expand(self.config.num_layers, -1, 1)
        blocks = step.block_tables.gather(2, index).squeeze(2).long()  # [L, B]
        slots = lengths % self.block_size
        for layer, (k, v) in enumerate(step.new):
            self.k_cache[layer][blocks[layer], slots] = k
            self.v_cache[layer][blocks[layer], slots] = v
