"""Stage 06, block-table cache: a sequence's rows are kept, and built again only when its block ids have changed.

What was slow:  stage 05 turns L lists per sequence into table rows on every step, although a sequence takes a new block
                only once in block_size steps: 63 of 64 steps build rows that exist already.
The change:     keep each sequence's rows [L, max_blocks] as a tensor, with the version of the block list that they
                were made from. A step stacks the rows of its batch into the pinned buffer, in one call.
What it gives:  rows are built only when a block is added, and there is one copy for all layers instead of two a layer.
Where it loses: sequences that started together take their next blocks together, and that step builds every row. And it
                keeps L equal tables: one table for all layers would need less of both.

The post's cache treats a row as unchanged when the number of blocks and the last id are the same. That is right only
while lists grow at their end; a version number, which is never used twice, detects any change.
Post: "Paged Attention Block Table Cache".
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.models import Model
from roseinfer.sequence import Sequence

from .s05_block_table import BlockTable, paged_attention_reference

__all__ = ["BlockTableCache", "paged_attention_reference"]


class BlockTableCache(BlockTable):
    """BlockTable that keeps the rows of every sequence. rows_built: rows built so far, L for each sequence."""

    name = "s06_block_table_cache"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.cached_rows: dict[int, tuple[int, Tensor]] = {}  # seq_id -> version, rows [L, max_blocks]
        self.rows_built = 0

    def build_block_tables(self, seqs: list[Sequence], out: Tensor) -> None:
        """Write the block ids of every sequence in every layer to out [L, B, max_blocks], zeros after them."""
        torch.stack([self.rows_of(seq) for seq in seqs], dim=1, out=out)

    def rows_of(self, seq: Sequence) -> Tensor:
        """The sequence's row in every layer's table, [L, max_blocks]."""
        version = self.tables.version(seq.seq_id)
        cached_version, rows = self.cached_rows.get(seq.seq_id, (None, None))
        if cached_version != version:
            rows = self.build_rows(seq)
            self.cached_rows[seq.seq_id] = version, rows
        return rows

    def build_rows(self, seq: Sequence) -> Tensor:
        rows = [self.padded_row(self.tables.of(seq.seq_id, layer)) for layer in range(self.tables.num_tables)]
        self.rows_built += len(rows)
        return torch.tensor(rows, dtype=torch.int32)

    def free(self, seq: Sequence) -> None:
        super().free(seq)
        self.cached_rows.pop(seq.seq_id, None)
