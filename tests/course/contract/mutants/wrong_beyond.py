"""Right for small sizes, wrong beyond: integer types that are too narrow, and limits that no author wrote down."""

from __future__ import annotations

import torch

from stages import BlockTable, NaiveCat, PreallocGather, SelectAppend, VectorizedGather
from stages.s05_block_table import PagedStep, paged_attention_reference

from .demonstrations import run
from .mutant import by_hand

LENGTH = ("long_sequences",)
COLUMNS = ("many_blocks",)
IDS = ("high_block_ids",)
BATCH = ("large_batches",)


# Lengths.


class SlidingWindow(NaiveCat):
    """Reads no more than the last 200 tokens."""

    def build(self, seqs):
        step = super().build(seqs)
        lengths = torch.tensor([seq.num_cached_tokens for seq in seqs])
        keys = torch.arange(step.mask.size(-1))
        step.mask = step.mask & (keys >= lengths[:, None] - 200)[:, None, None, :]
        return step


class PositionsOf512(SelectAppend):
    def positions(self, seqs):
        return [min(position, 511) for position in super().positions(seqs)]


class PromptOf2048(NaiveCat):
    """Writes the first 2,048 tokens of a prompt."""

    def write_prompt(self, seq, layer, k, v):
        for start, end, (k_block, v_block) in self.filled_blocks(seq, layer, min(len(seq), 2048)):
            k_block[:, : end - start] = k[start:end].transpose(0, 1)
            v_block[:, : end - start] = v[start:end].transpose(0, 1)


class BytesForLengths(BlockTable):
    """context_lens in 8 bits."""

    def build(self, seqs):
        step = super().build(seqs)
        lengths = step.context_lens.to(torch.uint8).int()
        return ShortLengths(step, lengths)


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


class PositionsInBf16(NaiveCat):
    """Exact up to 256."""

    def positions(self, seqs):
        return torch.tensor(super().positions(seqs), dtype=torch.bfloat16).long().tolist()


class PadsTo64(PreallocGather):
    """Takes no row for more than 64 tokens longer than the shortest."""

    def build(self, seqs):
        step = super().build(seqs)
        shortest = min(seq.num_cached_tokens for seq in seqs)
        step.mask[..., shortest + 65 : -1] = False
        return step


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


class FlatSlotsInShorts(VectorizedGather):
    """Gathers by block * block_size + slot, in 16 bits."""

    def build_batched_past(self, seqs, longest):
        tokens = torch.arange(longest)
        blocks = self.block_ids(seqs, longest).index_select(2, tokens // self.block_size)
        flat = (blocks * self.block_size + tokens % self.block_size).to(torch.int16).long()
        size = self.k_cache.size(1) * self.block_size
        return [
            tuple(pool.flatten(0, 1)[at % size].transpose(1, 2) for pool in (k, v))
            for k, v, at in zip(self.k_cache, self.v_cache, flat, strict=True)
        ]


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


class EightRows(NaiveCat):
    def build_batched_past(self, seqs, longest):
        return [
            tuple(torch.cat([x[:8], x[8:].flip(0)]) for x in pair) for pair in super().build_batched_past(seqs, longest)
        ]


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


class TwelveLayers(NaiveCat):
    """The layers after the twelfth share its blocks."""

    def append_token(self, seq, layer, k, v):
        if layer < 12:
            super().append_token(seq, layer, k, v)


class Squeezes(SelectAppend):
    """squeeze() where [B, H_kv, 1, D] loses its 1, and every other 1."""

    def append(self, seqs, step):
        for layer, (k_batch, v_batch) in enumerate(step.presents):
            for i, seq in enumerate(seqs):
                k, v = k_batch[i, :, -1].squeeze(), v_batch[i, :, -1].squeeze()
                self.append_token(seq, layer, k.view(k.size(0), -1), v.view(v.size(0), -1))


class DimsUpTo128(BlockTable):
    """A tile of 128 numbers a head."""

    @staticmethod
    def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
        scale = (min(q.size(2), 128) / q.size(2)) ** -0.5
        k, k_cache = k.clone(), k_cache.clone()
        k[..., 128:] = 0
        k_cache[..., 128:] = 0
        return paged_attention_reference(q * scale, k, v, k_cache, v_cache, block_table, context_lens)


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


LONG = {"model": "long", "num_blocks": 64}
HIGH = {"model": "long", "block_size": 4}
MUTANTS = (
    by_hand(SlidingWindow, run([230, 3], 9, **LONG), *LENGTH),
    by_hand(PositionsOf512, run([508], 9, **LONG), *LENGTH),
    by_hand(PromptOf2048, run([3000], 20, **LONG), *LENGTH),
    by_hand(BytesForLengths, run([250], 10, **LONG), *LENGTH),
    by_hand(ShortsForLengths, run([32767], 2, "longest", num_blocks=520), "very_long_sequences"),
    by_hand(PositionsInBf16, run([256], 9, **LONG), *LENGTH),
    by_hand(PadsTo64, run([150, 3], 9, **LONG), *LENGTH),
    by_hand(
        ids_as("Int8Ids", lambda ids: ids.to(torch.int8).int() % 100),
        run([9, 6], 9, high=150, **HIGH), *IDS,
    ),
    by_hand(ids_as("UInt8Ids", lambda ids: ids.to(torch.uint8).int()), run([9, 6], 9, high=300, **HIGH), *IDS),
    by_hand(
        ids_as("Int16Ids", lambda ids: ids.to(torch.int16).int() % 30_000),
        run([9, 6], 9, high=33_000, **HIGH), "very_high_block_ids",
    ),
    by_hand(
        ids_as("UInt16Ids", lambda ids: ids & 0xFFFF), run([9, 6], 9, high=66_000, **HIGH), "very_high_block_ids"
    ),
    by_hand(ids_as("IdsInFp16", lambda ids: ids.half().int()), run([9, 6], 9, high=2100, **HIGH), "very_high_block_ids"),  # noqa: E501
    by_hand(SevenBits, run([9, 6], 9, high=150, **HIGH), *IDS),
    by_hand(FlatSlotsInShorts, run([9, 6], 9, high=9_000, **HIGH), "very_high_block_ids", "very_long_sequences"),
    by_hand(SixteenColumns, run([70], 9, "long", block_size=4), *COLUMNS, "any_block_size"),
    by_hand(ColumnsInBytes, run([3000], 20, "long", block_size=4, num_blocks=760), *COLUMNS),
    by_hand(EightRows, run([3] * 12, 3), *BATCH),
    by_hand(WarpOf64, run([3] * 66, 3, num_blocks=66), *BATCH),
    by_hand(RowsInBytes, run([3] * 260, 3, num_blocks=260), "very_large_batches"),
    by_hand(
        kv_heads("HeadsByPowersOfTwo", lambda h, group, num_kv: h // power_of_two(group)),
        run([5, 2], 6, "groups of 3"), "odd_shapes",
    ),
    by_hand(
        kv_heads("GroupsUpTo4", lambda h, group, num_kv: h // min(group, 4)),
        run([5, 2], 6, "groups of 7"), "odd_shapes",
    ),
    by_hand(
        kv_heads("HeadsByShift", lambda h, group, num_kv: h >> (group // 2)),
        run([5, 2], 6, "groups of 7"), "odd_shapes",
    ),
    by_hand(TwelveLayers, run([5, 2], 6, "50 layers"), "odd_shapes", "equals_transformers_in_full_size"),
    by_hand(Squeezes, run([5, 2], 6, "one of everything"), "odd_shapes", "shared_kv_heads"),
    by_hand(DimsUpTo128, run([5, 2], 30, "heads of 136"), "odd_shapes"),
)  # fmt: skip
