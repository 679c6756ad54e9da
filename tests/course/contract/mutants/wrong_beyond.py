"""Right for small sizes, wrong beyond: integer types that are too narrow, and limits that no author wrote down."""

from __future__ import annotations

import torch

from stages import BlockTable, NaiveCat, VectorizedGather
from stages.s05_block_table import PagedStep, paged_attention_reference

from .mutant import by_hand

# Lengths.


class PromptOf2048(NaiveCat):
    """Writes the first 2,048 tokens of a prompt."""

    def write_prompt(self, seq, layer, k, v):
        for start, end, (k_block, v_block) in self.filled_blocks(seq, layer, min(len(seq), 2048)):
            k_block[:, : end - start] = k[start:end].transpose(0, 1)
            v_block[:, : end - start] = v[start:end].transpose(0, 1)


class ShortsForLengths(BlockTable):
    """context_lens in 16 bits."""

    def build(self, seqs):
        step = super().build(seqs)
        return ShortLengths(step, step.context_lens.to(torch.int16).int())


class ShortLengths(PagedStep):
    """Attends with other lengths; appends with the true ones."""

    def __init__(self, step, lengths):
        super().__init__(step.stage, step.block_tables, step.context_lens)
        self.lengths = lengths

    def __call__(self, layer, q, k, v):
        self.new.append((k, v))
        s = self.stage
        return s.attention(q, k, v, s.k_cache[layer], s.v_cache[layer], self.block_tables[layer], self.lengths)


# Blocks.


def ids_as(kind: str, convert):
    class OtherIds(BlockTable):
        def build_block_tables(self, seqs, out):
            super().build_block_tables(seqs, out)
            out.copy_(convert(out))

    OtherIds.__name__ = kind
    return OtherIds


class SevenBits(VectorizedGather):
    """block & 127, in reading alone."""

    def block_ids(self, seqs, longest):
        return super().block_ids(seqs, longest) & 127


class SixteenColumns(BlockTable):
    """A table with 16 columns; what lies after them is left out."""

    def build(self, seqs):
        step = super().build(seqs)
        step.block_tables[:, :, 16:] = 0
        return step


class ColumnsInBytes(VectorizedGather):
    """A column's number in 8 bits."""

    def block_ids(self, seqs, longest):
        tables = super().block_ids(seqs, longest)
        columns = torch.arange(tables.size(2)).to(torch.uint8).long()
        return tables[:, :, columns]


# Batches.


class WarpOf64(BlockTable):
    """Programs 64 and up serve the first rows again."""

    @staticmethod
    def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
        row = torch.arange(q.size(0)) % 64
        return paged_attention_reference(q, k, v, k_cache, v_cache, block_table[row], context_lens[row])


class RowsInBytes(BlockTable):
    """A row's number in 8 bits."""

    @staticmethod
    def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
        row = torch.arange(q.size(0)).to(torch.uint8).long()
        return paged_attention_reference(q, k, v, k_cache, v_cache, block_table[row], context_lens[row])


# Shapes.


def kv_heads(name: str, rule):
    """Choose the KV head that serves query head h: rule(h, group, num_kv_heads)."""

    class OtherHeads(BlockTable):
        @staticmethod
        def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
            group, num_kv = q.size(1) // k.size(1), k.size(1)
            head = [min(rule(h, group, num_kv), num_kv - 1) for h in range(q.size(1))]
            return paged_attention_reference(
                q, k[:, head], v[:, head], k_cache[:, :, head], v_cache[:, :, head], block_table, context_lens
            )

    OtherHeads.__name__ = name
    return OtherHeads


MUTANTS = (
    by_hand(PromptOf2048, "long_sequences"),
    by_hand(ShortsForLengths, "very_long_sequences"),
    by_hand(ids_as("UInt8Ids", lambda ids: ids.to(torch.uint8).int()), "high_block_ids"),
    by_hand(SevenBits, "high_block_ids"),
    by_hand(ids_as("Int16Ids", lambda ids: ids.to(torch.int16).int() % 30_000), "very_high_block_ids"),
    by_hand(ids_as("UInt16Ids", lambda ids: ids & 0xFFFF), "very_high_block_ids"),
    by_hand(SixteenColumns, "any_block_size"),
    by_hand(ColumnsInBytes, "many_blocks"),
    by_hand(WarpOf64, "large_batches"),
    by_hand(RowsInBytes, "very_large_batches"),
    by_hand(kv_heads("GroupsUpTo4", lambda h, group, num_kv: h // min(group, 4)), "odd_shapes"),
    by_hand(kv_heads("HeadsByShift", lambda h, group, num_kv: h >> (group // 2)), "odd_shapes"),
)
