"""What a stage keeps from one call to the next and takes for what it no longer is."""

from __future__ import annotations

import torch

from stages import BlockTable, BlockTableCache, NaiveCat, VectorizedGather

from .mutant import Mutant, by_hand


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

    return Mutant(f"rows by {name}", lambda: OtherKey, ("other_blocks",))


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


class OldBlock(NaiveCat):
    """The block that a sequence writes to, kept until the next edge, and past a free."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.open_blocks = {}

    def append_token(self, seq, layer, k, v):
        index, slot = divmod(seq.num_cached_tokens, self.block_size)
        at = seq.seq_id, layer
        if slot == 0 or at not in self.open_blocks:
            self.open_blocks[at] = self.blocks[layer][self.tables.of(seq.seq_id, layer)[index]]
        k_block, v_block = self.open_blocks[at]
        k_block[:, slot], v_block[:, slot] = k, v


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
    rows_known_by("sequence, first and last", lambda seq_id, blocks: (seq_id, len(blocks), blocks[0], blocks[-1])),
    rows_known_by("sequence and sum", lambda seq_id, blocks: (seq_id, len(blocks), sum(blocks))),
    rows_known_by("sequence and set", lambda seq_id, blocks: (seq_id, frozenset(blocks))),
    rows_known_by("sequence, all but the first", lambda seq_id, blocks: (seq_id, len(blocks), *blocks[1:])),
    rows_known_by("last and sum", lambda seq_id, blocks: (0, len(blocks), blocks[-1], sum(blocks))),
    by_hand(OldBlock, "other_blocks"),
    by_hand(ByPlace, "batch_grows_and_shrinks"),
    by_hand(BySequenceModulo, "neighbours_come_and_go"),
    by_hand(SharedPool, "two_at_once"),
    by_hand(SameLogits, "leaves_what_is_yours"),
    by_hand(SortsYours, "leaves_what_is_yours"),
    by_hand(LooksAtTheFirstPrompt, "alike_prompts"),
)
