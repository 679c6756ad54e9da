"""five_changes: the stages between stage 09 and stage 10, one change each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roseinfer.blocks import BlockTables
from roseinfer.kernels.attention import attention_for
from roseinfer.models import Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

TABLE, WRITE, LAYOUT, LOOPS = "+ one table", "+ write first", "+ head-major", "+ stage 10's loops"
BUFFER = "+ one buffer, stage 10"


def five_changes(before: type[Stage], after: type[Stage]) -> list[type[Stage]]:
    """Return stage 09, four stages between it and stage 10, and stage 10: each has one more change. They run on a CPU.

    before, after: NumbaPaged and OneTable. The second stage has one table, the third also writes K and V before it
    attends, the fourth also has a head-major pool, and the fifth also calls stage 10's loops. The last change is stage
    10's buffer.
    """
    base: Any = before

    class OneTableForAll(base):
        name = TABLE

        def __init__(self, model: Model, **sizes: int) -> None:
            super().__init__(model, **sizes)
            self.tables = BlockTables(1, sizes["num_blocks"], self.block_size)

        def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
            slots = torch.tensor(self.slots_of(seq, 0, len(seq)))
            self.store(layer, slots // self.block_size, slots % self.block_size, k, v)

        def store(self, layer: int, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
            self.k_cache[layer][blocks, offsets] = k
            self.v_cache[layer][blocks, offsets] = v

        def slots_of(self, seq: Sequence, start: int, stop: int) -> list[int]:
            blocks, size = self.tables.of(seq.seq_id, 0), self.block_size
            return [blocks[p // size] * size + p % size for p in range(start, stop)]

        def new_slots(self, seqs: list[Sequence]) -> list[int]:
            cached = [seq.num_cached_tokens for seq in seqs]
            return [slot for seq, n in zip(seqs, cached, strict=True) for slot in self.slots_of(seq, n, n + 1)]

        def build(self, seqs: list[Sequence]) -> Any:
            step = super().build(seqs)
            step.block_tables = step.block_tables.expand(self.config.num_layers, -1, -1)
            return step

    class WriteFirst(OneTableForAll):
        name = WRITE

        def build(self, seqs: list[Sequence]) -> Any:
            ready = super().build(seqs)
            slots = torch.tensor(self.new_slots(seqs))
            blocks, offsets = slots // self.block_size, slots % self.block_size

            def step(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                self.store(layer, blocks, offsets, k, v)
                return self.attend(layer, q, k, v, ready)

            return step

        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, ready: Any) -> Tensor:
            pools = self.k_cache[layer], self.v_cache[layer]
            return self.attention(q, k, v, *pools, ready.block_tables[layer], ready.context_lens)

        def append(self, seqs: list[Sequence], step: Any) -> None:
            """Do nothing: the step has already written K and V."""

    class HeadMajor(WriteFirst):
        """Stage whose pool is head-major: a token-major pool of H times as many blocks with one of the H heads each."""

        name = LAYOUT

        def __init__(self, model: Model, **sizes: int) -> None:
            super().__init__(model, **sizes)
            for name in ("k_cache", "v_cache"):
                setattr(self, name, getattr(self, name).transpose(2, 3).contiguous())

        def store(self, layer: int, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
            self.k_cache[layer][blocks, :, offsets] = k
            self.v_cache[layer][blocks, :, offsets] = v

        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, ready: Any) -> Tensor:
            heads = self.config.num_kv_heads
            if not hasattr(ready, "by_head"):
                table = ready.block_tables[0][:, None] * heads + torch.arange(heads, dtype=torch.int32)[:, None]
                ready.by_head = table.flatten(0, 1), ready.context_lens.repeat_interleave(heads)
            pools = (pool[layer].flatten(0, 1).unsqueeze(2) for pool in (self.k_cache, self.v_cache))
            new = (x.reshape(-1, x.size(1) // heads, x.size(2)) for x in (q, k, v))
            return self.attention(*new, *pools, *ready.by_head).view_as(q)

    class LibraryLoops(HeadMajor):
        name = LOOPS

        def build(self, seqs: list[Sequence]) -> Any:
            ready = OneTableForAll.build(self, seqs)
            inputs = (
                torch.tensor(self.new_slots(seqs), dtype=torch.int32),
                torch.arange(len(seqs) + 1, dtype=torch.int32),
                ready.context_lens + 1,
                ready.block_tables[0],
            )
            attention = attention_for(self.model.device)

            def step(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return attention(q, k, v, self.k_cache[layer], self.v_cache[layer], *inputs)

            return step

    return [before, OneTableForAll, WriteFirst, HeadMajor, LibraryLoops, after]
