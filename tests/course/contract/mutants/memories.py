"""What a stage keeps from one call to the next and takes for what it no longer is."""

from __future__ import annotations

from string import ascii_letters

import torch

from stages import BlockTable, BlockTableCache, NaiveCat, PreallocGather, SelectAppend, VectorizedGather

from .demonstrations import callers_list, logits_kept, rearranged, run, script, side_by_side
from .mutant import Mutant, by_hand

BACK = ("other_blocks",)
BATCHES = ("batch_grows_and_shrinks", "random_schedules", "rows_in_order", "neighbours_come_and_go", "mixed_lengths")


def rows_known_by(name: str, key) -> Mutant:
    """A row cache as in stage 06 with another key, key(seq_id, blocks), that keeps its rows at free."""

    class OtherKey(BlockTableCache):
        def rows_of(self, seq):
            at = key(seq.seq_id, self.tables.of(seq.seq_id, 0))
            if at not in self.cached_rows:
                self.cached_rows[at] = self.build_rows(seq)
            return self.cached_rows[at]

        def free(self, seq):
            BlockTable.free(self, seq)

    return Mutant(f"rows by {name}", lambda: OtherKey, rearranged(), BACK, BlockTableCache)


class ByPlace(VectorizedGather):
    """Tables kept a place in the batch, for as long as the sequence there has as many blocks."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.rows = {}

    def block_ids(self, seqs, longest):
        new, width = super().block_ids(seqs, longest), self.tables.blocks_for(longest)
        for i, seq in enumerate(seqs):
            at = i, len(self.tables.of(seq.seq_id, 0)), width
            new[:, i] = self.rows.setdefault(at, new[:, i].clone())
        return new


class BySequenceModulo(BlockTable):
    """One row per sequence at seq_id % 64, written when its blocks become more, read ever after."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.kept = {}

    def build_block_tables(self, seqs, out):
        super().build_block_tables(seqs, out)
        for i, seq in enumerate(seqs):
            num_blocks = len(self.tables.of(seq.seq_id, 0))
            if self.kept.get(seq.seq_id) != num_blocks:
                self.kept[seq.seq_id] = num_blocks
                self.kept["row", seq.seq_id % 64] = out[:, i].clone()
            out[:, i] = self.kept["row", seq.seq_id % 64]

    def free(self, seq):
        super().free(seq)
        self.kept.pop(seq.seq_id, None)


class StaleColumns(BlockTableCache):
    """What stood after a shorter row stays there, and context_lens is the batch's longest of old."""

    def build(self, seqs):
        step = super().build(seqs)
        if len(seqs) == getattr(self, "size", None):
            step.context_lens = self.lengths + 1
        self.size, self.lengths = len(seqs), step.context_lens
        return step


class MaskOfOld(SelectAppend):
    """The mask is kept while batch and longest stay the same."""

    def build(self, seqs):
        step = super().build(seqs)
        at = len(seqs), max(seq.num_cached_tokens for seq in seqs)
        self.masks = getattr(self, "masks", {})
        step.mask = self.masks.setdefault(at, step.mask)
        return step


class OneBuffer(PreallocGather):
    """The batch tensor is kept and grows, and no longer zeroed; the mask is as wide as the longest ever."""

    def build_batched_past(self, seqs, longest):
        self.widest = max(longest, getattr(self, "widest", 0))
        past = super().build_batched_past(seqs, longest)
        if len(seqs) != getattr(self, "rows", len(seqs)):
            past = [(k.flip(0), v.flip(0)) for k, v in past]
        self.rows = len(seqs)
        return past


class SharedPool(VectorizedGather):
    """One pool for all stages of a shape: a cache of tensors on the class."""

    pools = {}

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        at = model.config
        shape = (self.config.num_layers, 16, 64, self.config.num_kv_heads, self.config.head_dim)
        if self.block_size <= 64 and self.tables.num_blocks <= 16:
            self.pools.setdefault(at, (torch.zeros(shape, dtype=model.dtype), torch.zeros(shape, dtype=model.dtype)))
            self.k_cache, self.v_cache = (x[:, : self.tables.num_blocks] for x in self.pools[at])


class SameLogits(NaiveCat):
    """One tensor of logits for all steps of a batch size, written again on each."""

    def decode(self, seqs):
        logits = super().decode(seqs)
        self.outputs = getattr(self, "outputs", {})
        out = self.outputs.setdefault(len(seqs), logits)
        if out is not logits:
            with torch.inference_mode():
                out.copy_(logits)
        return out


class SortsYours(NaiveCat):
    """Longest first, in the caller's own list."""

    def decode(self, seqs):
        seqs.sort(key=len, reverse=True)
        return super().decode(seqs)


class LooksAtTheFirstPrompt(NaiveCat):
    """Prompts of one beginning share what was written for the first of them."""

    def write_prompt(self, seq, layer, k, v):
        self.known = getattr(self, "known", {})
        k, v = self.known.setdefault((layer, seq.token_ids[0], len(seq)), (k.clone(), v.clone()))
        super().write_prompt(seq, layer, k, v)


MUTANTS = (
    rows_known_by("the sequence", lambda seq_id, blocks: (seq_id, len(blocks))),
    rows_known_by("sequence and last block", lambda seq_id, blocks: (seq_id, len(blocks), blocks[-1])),
    rows_known_by("sequence, first and last", lambda seq_id, blocks: (seq_id, len(blocks), blocks[0], blocks[-1])),
    rows_known_by("sequence and sum", lambda seq_id, blocks: (seq_id, len(blocks), sum(blocks))),
    rows_known_by("sequence and set", lambda seq_id, blocks: (seq_id, frozenset(blocks))),
    rows_known_by("sequence, all but the first", lambda seq_id, blocks: (seq_id, len(blocks), *blocks[1:])),
    rows_known_by("first and last", lambda seq_id, blocks: (0, len(blocks), blocks[0], blocks[-1])),
    rows_known_by("set", lambda seq_id, blocks: (0, frozenset(blocks))),
    rows_known_by("last and sum", lambda seq_id, blocks: (0, len(blocks), blocks[-1], sum(blocks))),
    by_hand(ByPlace, script("+a5 +b5 a b a b"), *BATCHES, *BACK),
    by_hand(BySequenceModulo, run([5] * 65, 9, num_blocks=65), "neighbours_come_and_go", "large_batches"),
    by_hand(StaleColumns, script("+a5 +b9 a b a"), *BATCHES, "pool_exhausted"),
    by_hand(MaskOfOld, script("+a5 +b9 ab*4 -a -b +c9 +d1 cd*4"), "alike_prompts", *BATCHES),
    by_hand(OneBuffer, script("+a5 +b9 +c3 abc ab"), *BATCHES),
    by_hand(SharedPool, side_by_side(), "two_at_once"),
    by_hand(SameLogits, logits_kept(), "leaves_what_is_yours", "one_sequence"),
    by_hand(SortsYours, callers_list(), "mixed_lengths", "leaves_what_is_yours"),
    by_hand(LooksAtTheFirstPrompt, script(" ".join(f"+{letter}3 {letter}*2 -{letter}" for letter in ascii_letters)),
            "alike_prompts"),
)  # fmt: skip
