"""Stages that are right, and as unlike those of the course as the seam allows. The contract takes each of them."""

from __future__ import annotations

from copy import deepcopy

import torch
from right_stage import Right

from roseinfer.blocks import BlockTables
from stages import BlockTable, BlockTableCache, PreallocGather, SelectAppend, VectorizedGather
from stages.s05_block_table import paged_attention_reference


class HeadsFirst(VectorizedGather):
    """A pool [H_kv, num_blocks, block_size, D], seen as stage 04 wants it: other strides, the same numbers."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.k_cache, self.v_cache = (
            x.permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4) for x in (self.k_cache, self.v_cache)
        )


class LongestFirst(SelectAppend):
    """Decodes in the order of the lengths, and puts the rows back."""

    def decode(self, seqs):
        order = sorted(range(len(seqs)), key=lambda i: -len(seqs[i]))
        logits = super().decode([seqs[i] for i in order])
        return logits[torch.tensor(order, device=logits.device).argsort()]


class PadsTheBatch(BlockTable):
    """Attention on a batch padded to a power of two, as captured graphs need it; the pads read block 0 and no token."""

    @staticmethod
    def attention(q, k, v, k_cache, v_cache, block_table, context_lens):
        size = q.size(0)
        pad = (1 << (size - 1).bit_length()) - size
        q, k, v = (torch.cat([x, x.new_zeros(pad, *x.shape[1:])]) for x in (q, k, v))
        block_table, context_lens = (
            torch.cat([x, x.new_zeros(pad, *x.shape[1:])]) for x in (block_table, context_lens)
        )
        return paged_attention_reference(q, k, v, k_cache, v_cache, block_table, context_lens)[:size]


class TwoLevelsDown(BlockTableCache):
    """Inherits at two levels, and keeps rows by all of their blocks, for any sequence that has these."""

    def rows_of(self, seq):
        at = tuple(tuple(self.tables.of(seq.seq_id, layer)) for layer in range(self.tables.num_tables))
        if at not in self.cached_rows:
            self.cached_rows = {**dict(list(self.cached_rows.items())[-15:]), at: self.build_rows(seq)}
        return self.cached_rows[at]


class PoolOfGarbage(VectorizedGather):
    """A pool that was never zeroed: what no token wrote is large."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.k_cache.fill_(1000.0)
        self.v_cache.fill_(-1000.0)


class KeepsTheBatch(PreallocGather):
    """The gathered batch is kept while the same sequences step on, longer by their new token each time."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.last = None

    def build_batched_past(self, seqs, longest):
        at = [(seq.seq_id, self.tables.version(seq.seq_id), seq.num_cached_tokens) for seq in seqs]
        if self.last is None or self.last[0] != at:
            self.last = at, super().build_batched_past(seqs, longest)
        return self.last[1]

    def free(self, seq):
        super().free(seq)
        self.last = None


class OwnBooks(BlockTables):
    """Hands out the block that was freed longest ago, from the highest id down."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        for free in self._free:
            free.reverse()

    def free(self, seq_id):
        kept = [list(free) for free in self._free]
        super().free(seq_id)
        for free, old in zip(self._free, kept, strict=True):
            free[:] = free[len(old) :] + old


class OtherBooks(VectorizedGather):
    """Blocks come in another order than that of stage 01."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.tables = OwnBooks(self.tables.num_tables, self.tables.num_blocks, self.tables.block_size)


class AnotherWay(VectorizedGather):
    """Where the quick way is out of memory, the slow one of stage 01's mask and no index is taken."""

    def build(self, seqs):
        try:
            return super().build(seqs)
        except RuntimeError:
            return super().build(list(seqs))


class OwnDecode(SelectAppend):
    """A decode of its own, without the template's three phases."""

    @torch.inference_mode()
    def decode(self, seqs):
        self._check_decodable(seqs)
        self.tables.reserve({seq.seq_id: len(seq) for seq in seqs})
        past = self.build(seqs)
        device = self.model.device
        ids = torch.tensor([seq.token_ids[-1] for seq in seqs], device=device)
        hidden = self.model(ids, torch.tensor([len(seq) - 1 for seq in seqs], device=device), past)
        logits = self.model.logits(hidden)
        self.append(seqs, past)
        for seq in seqs:
            seq.num_cached_tokens = len(seq)
        return logits


class BlocksOf32(SelectAppend):
    """Where nothing else is asked for, blocks of 32 tokens."""

    def __init__(self, model, *, num_blocks, block_size=32, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)


class OnACopy(SelectAppend):
    """Runs on a copy of the caller's model."""

    def __init__(self, model, **sizes):
        super().__init__(deepcopy(model), **sizes)


class OwnInAllOfIt(OwnDecode, OtherBooks, HeadsFirst):
    """Another decode, other books and other strides at once."""


class PadsTwoLevelsDown(TwoLevelsDown, PadsTheBatch):
    """Kept rows and a padded batch at once."""


UNUSUAL = (
    OwnInAllOfIt,
    PadsTwoLevelsDown,
    Right,
    HeadsFirst,
    LongestFirst,
    PadsTheBatch,
    TwoLevelsDown,
    PoolOfGarbage,
    KeepsTheBatch,
    OtherBooks,
    AnotherWay,
    OwnDecode,
    BlocksOf32,
    OnACopy,
)
