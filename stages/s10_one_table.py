"""Stage 10, one table: every layer reads the same block table, and attention writes K and V before it reads them.

What was slow:  the stages before keep a block table for each layer, as the first post did. All are equal, and each
                costs rows to build, to keep and to upload. New K and V wait in a list until the forward is over; then
                append computes on the device where they belong, and stores them with two calls a layer.
The change:     one table for all layers. The host computes where each new token goes, its slot; attention takes
                these slots, writes K and V there and attends over the cache, including the new token. All inputs of a
                step lie in one buffer, at the same addresses on every step.
What it gives:  one row a sequence instead of L. No append. One upload. A prompt, a chunk of one and a new token are
                the same case, so one attention serves all. And a head's part of a block is contiguous in
                memory: the pool is head-major now.
Where it loses: every row is still built from a Python list on every step. And the whole buffer is uploaded to a
                GPU each time, although most of it is room for a long prompt.

This module is complete: the third family starts here. The attention is the library's, roseinfer/kernels: loops that
Numba compiles on a CPU, Triton's on a GPU. slot_mapping is vLLM's name (Kwon et al., 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.blocks import BlockTables
from roseinfer.kernels.attention import attention_for
from roseinfer.models import Model
from roseinfer.profiling import span
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage


class WriteThenAttend:
    """One step's attention over a flat batch of N tokens; the inputs are pieces of the stage's buffer."""

    def __init__(self, stage: OneTable, num_tokens: int, num_seqs: int) -> None:
        self.pool, self.attention = stage.pool, stage.attention
        inputs = stage.inputs_on_device
        self.inputs = (
            inputs["slot_mapping"][:num_tokens], inputs["query_start"][: num_seqs + 1],
            inputs["context_lens"][:num_seqs], inputs["block_tables"][:num_seqs],
        )  # fmt: skip
        self.out = stage.attended[:num_tokens]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_cache, v_cache = self.pool[:, layer]
        return self.attention(q, k, v, k_cache, v_cache, *self.inputs, self.out)


class OneTable(Stage):
    """One block table for all layers; K and V are written by attention. rows_built: how many rows so far."""

    name = "s10_one_table"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        c, on_gpu = self.config, model.device.type == "cuda"
        self.tables = BlockTables(1, num_blocks, block_size)
        self.max_blocks = min(num_blocks, self.tables.blocks_for(c.max_model_len))  # of one sequence
        shape = (2, c.num_layers, num_blocks, c.num_kv_heads, block_size, c.head_dim)
        self.pool = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.attention = attention_for(model.device)

        self.max_num_tokens = max(c.max_model_len, max_num_seqs)  # of a step: one prompt, or a token of each sequence
        self.attended = torch.empty(
            self.max_num_tokens, c.num_heads, c.head_dim, dtype=model.dtype, device=model.device
        )
        shapes = {
            "token_ids": (self.max_num_tokens,), "positions": (self.max_num_tokens,),
            "slot_mapping": (self.max_num_tokens,), "query_start": (max_num_seqs + 1,),
            "context_lens": (max_num_seqs,), "block_tables": (max_num_seqs, self.max_blocks),
        }  # fmt: skip
        size = sum(torch.Size(shape).numel() for shape in shapes.values())
        self.host_buffer = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.device_buffer = self.host_buffer.to(model.device)  # on a CPU the same memory: nothing to copy
        self.inputs_on_host = {name: x.numpy() for name, x in cut(self.host_buffer, shapes).items()}
        self.inputs_on_device = cut(self.device_buffer, shapes)
        self.copied = torch.cuda.Event() if on_gpu else None
        self.rows_built = 0

    def write_inputs(self, seqs: list[Sequence], num_new: list[int]) -> tuple[Tensor, Tensor]:
        """token_ids [N], positions [N] of the next num_new[i] tokens of each sequence."""
        if self.copied:
            self.copied.synchronize()  # the last step's copy may still be reading the host buffer
        new = [range(seq.num_cached_tokens, seq.num_cached_tokens + n) for seq, n in zip(seqs, num_new, strict=True)]
        num_tokens = sum(num_new)
        host, device = self.inputs_on_host, self.inputs_on_device
        host["token_ids"][:num_tokens] = [seq.token_ids[p] for seq, at in zip(seqs, new, strict=True) for p in at]
        host["positions"][:num_tokens] = [p for at in new for p in at]
        return device["token_ids"][:num_tokens], device["positions"][:num_tokens]

    def write_tables(self, seqs: list[Sequence], num_new: list[int]) -> WriteThenAttend:
        """Write each sequence's blocks and each new token's slot, then upload all inputs in one copy."""
        host, size = self.inputs_on_host, self.block_size
        with span("roseinfer.decode_step_sessions.build_block_tables"):
            slots, starts, lengths = [], [0], []
            for row, (seq, n) in enumerate(zip(seqs, num_new, strict=True)):
                self.write_row(row, seq)
                blocks, cached = self.tables.of(seq.seq_id, 0), seq.num_cached_tokens
                slots += [blocks[p // size] * size + p % size for p in range(cached, cached + n)]
                starts.append(starts[-1] + n)
                lengths.append(cached + n)
            host["slot_mapping"][: len(slots)] = slots
            host["query_start"][: len(starts)] = starts
            host["context_lens"][: len(lengths)] = lengths
        with span("roseinfer.decode_step_sessions.h2d_block_tables"):
            if self.copied:
                self.device_buffer.copy_(self.host_buffer, non_blocking=True)
                self.copied.record()
        return WriteThenAttend(self, len(slots), len(seqs))

    def write_row(self, row: int, seq: Sequence) -> None:
        """The sequence's blocks, as a row of the table. What an older batch left after them is not read."""
        blocks = self.tables.of(seq.seq_id, 0)
        self.inputs_on_host["block_tables"][row, : len(blocks)] = blocks
        self.rows_built += 1

    def prompt_logits(self, seq: Sequence) -> Tensor:
        token_ids, positions = self.write_inputs([seq], [len(seq)])
        attend = self.write_tables([seq], [len(seq)])
        with span("roseinfer.model.forward"):
            return self.model.logits(self.model(token_ids, positions, attend)[-1:])[0]

    def inputs(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        return self.write_inputs(seqs, [1] * len(seqs))

    def build(self, seqs: list[Sequence]) -> WriteThenAttend:
        return self.write_tables(seqs, [1] * len(seqs))

    def append(self, seqs: list[Sequence], step: WriteThenAttend) -> None:
        """Nothing to do: attention has written K and V."""

    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        """Nothing to do: a prompt takes the same path as a new token."""


def cut(buffer: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Consecutive pieces of a flat buffer, by name."""
    pieces = buffer.split([torch.Size(shape).numel() for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
