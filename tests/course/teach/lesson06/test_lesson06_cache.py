"""Lesson 06: wrong ways to build nothing are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
from wrong_answers import changed, right_answers, wrong_answers

from course.teach import check
from stages import BlockTable, BlockTableCache

pytestmark = pytest.mark.slow


class Remembers(BlockTableCache):
    """Leaves the buffer as it is while `state` is what it was; the subclasses get it wrong in their own ways."""

    in_buffer = None

    def state(self, seqs):
        raise NotImplementedError

    def build_block_tables(self, seqs, out):
        state = self.state(seqs)
        if state != self.in_buffer:
            super().build_block_tables(seqs, out)
            self.in_buffer = state


def by_versions(state):
    """state: of the versions of the sequences' tables."""
    return changed(Remembers, state=lambda self, seqs: state(self.tables.version(seq.seq_id) for seq in seqs))


def by_blocks(key):
    """key: of a sequence's blocks."""

    def state(self, seqs):
        return [(seq.seq_id, key(self.tables.of(seq.seq_id, 0))) for seq in seqs]

    return changed(Remembers, state=state)


ByVersions = by_versions(list)


class RemembersFirst(ByVersions):
    """Says that the buffer is right before it is: an error in the middle, and it is not."""

    def build_block_tables(self, seqs, out):
        state = self.state(seqs)
        if state != self.in_buffer:
            self.in_buffer = state
            BlockTableCache.build_block_tables(self, seqs, out)


class ByBatchSize(ByVersions):
    """Remembers one batch of each size; the buffer holds the last one alone."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.states = {}

    def build_block_tables(self, seqs, out):
        if self.states.get(len(seqs)) != self.state(seqs):
            BlockTableCache.build_block_tables(self, seqs, out)
            self.states[len(seqs)] = self.state(seqs)


class FirstLayerOnly(ByVersions):
    def build_block_tables(self, seqs, out):
        state = self.state(seqs)
        if state != self.in_buffer:
            out[:1].copy_(torch.stack([self.rows_of(seq)[:1] for seq in seqs], dim=1))
            self.in_buffer = state


class ForgetsOnFree(BlockTableCache):
    """By the batch and the number of its blocks; a free makes it forget."""

    seen = None

    def free(self, seq):
        super().free(seq)
        self.seen = None

    def build_block_tables(self, seqs, out):
        now = [(seq.seq_id, len(self.tables.of(seq.seq_id, 0))) for seq in seqs]
        if now != self.seen:
            self.seen = None
            super().build_block_tables(seqs, out)
            self.seen = now


class RowByRow(BlockTableCache):
    """Writes the rows that have changed, and no other."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.written = []

    def build_block_tables(self, seqs, out):
        versions = [self.tables.version(seq.seq_id) for seq in seqs]
        if len(versions) != len(self.written):  # other strides
            self.written = [None] * len(versions)
        for i, seq in enumerate(seqs):
            if versions[i] != self.written[i]:
                self.written[i] = None
                out[:, i] = self.rows_of(seq)
                self.written[i] = versions[i]


class SameTensors(BlockTableCache):
    """Stage 06's own rows are other tensors whenever they have changed; those in the buffer are kept, and compared."""

    in_buffer = ()

    def build_block_tables(self, seqs, out):
        rows = [self.rows_of(seq) for seq in seqs]
        if len(rows) != len(self.in_buffer) or any(a is not b for a, b in zip(rows, self.in_buffer, strict=True)):
            self.in_buffer = ()
            torch.stack(rows, dim=1, out=out)
            self.in_buffer = rows


class ByRowsBuilt(BlockTableCache):
    """Skips the stack when no row had to be built, and forgets to ask who is in the batch."""

    def build_block_tables(self, seqs, out):
        before = self.rows_built
        rows = [self.rows_of(seq) for seq in seqs]
        if self.rows_built != before:
            torch.stack(rows, dim=1, out=out)


class CopiesRow(BlockTableCache):
    def build_block_tables(self, seqs, out):
        for i, seq in enumerate(seqs):
            out[:, i].copy_(self.rows_of(seq))


class BuildsAllOnAChange(ByVersions):
    def build_block_tables(self, seqs, out):
        if self.state(seqs) != self.in_buffer:
            self.cached_rows.clear()
        super().build_block_tables(seqs, out)


test_wrong_ways_to_build_nothing = wrong_answers(
    "06.3",
    {
        "by the batch": (
            by_blocks(lambda blocks: None),
            "when a sequence takes a new block (its list grows in place), row 0 of layer 0 begins [0, 1, 0]",
        ),
        "by the engine's own lists": (
            by_blocks(lambda blocks: blocks),  # they grow in place, and so are always equal to themselves
            "when a sequence takes a new block (its list grows in place), row 0 of layer 0",
        ),
        "by the set of versions": (by_versions(set), "when the batch comes in another order, row 0"),
        "by the newest version": (by_versions(max), "when the batch comes in another order, row 0"),
        "by the rows built": (ByRowsBuilt, "when the batch comes in another order, row 0"),
        "as stage 05 does it": (BlockTable, "a step in which nothing changes builds 8 rows, the budget is 0"),
        "as stage 06 does it": (BlockTableCache, "1 aten::stack too many (1, the budget is 0)"),
        "rows copied one by one": (CopiesRow, "4 aten::copy_ too many (4, the budget is 0)"),
        "all rows built on a change": (
            BuildsAllOnAChange,
            "one of 3 sequences takes a new block, and 6 rows are built; the budget is 2",
        ),
        "the class's name": ("OnlyWhenChanged", "expected a subclass of BlockTableCache"),
        "by length, first and last, which 06.2 itself calls unsound": (
            by_blocks(lambda blocks: (len(blocks), blocks[0], blocks[-1])),
            "step A: after the last of these calls, row 0 of layer 0 begins [0, 1, 2]; the blocks are [0, 3, 2]",
        ),
        "by the set of ids": (by_blocks(frozenset), "row 0 of layer 0 begins [0, 1, 2]; the blocks are [0, 2, 1]"),
        "by the sum": (
            by_blocks(lambda blocks: (len(blocks), sum(blocks))),
            "row 0 of layer 0 begins [0, 1, 2]; the blocks are [0, 2, 1]",
        ),
        "by a hash of 8 bits": (
            by_blocks(lambda blocks: hash(tuple(blocks)) % 256),
            "after thousands of sequences that came and went, row 0",
        ),
        "by versions in 16 bits": (
            by_versions(lambda versions: [version % 2**16 for version in versions]),
            "when a table has changed 65,536 times since a row was written, row 1",
        ),
        "remembered before it is written": (
            RemembersFirst,
            "when an error ended the build before, and the step is repeated, row 0",
        ),
        "one batch of each size": (ByBatchSize, "when the batch before last comes back, row 0"),
        "the first layer alone": (
            FirstLayerOnly,
            "on the first step, row 0 of layer 1 begins [0, 0]; the blocks are [0, 1]",
        ),
    },
    model="small",
)


RIGHT_CACHES = {
    "versions": ByVersions,
    "contents": by_blocks(tuple),
    "forgets on free": ForgetsOnFree,
    "row by row": RowByRow,
    "the same tensors": SameTensors,
    "inherited": changed(ByVersions),
}


test_right_ways_to_build_nothing = right_answers("06.3", RIGHT_CACHES, model="small")


def test_the_posts_key_needs_the_sequence_to_come_back(small):
    verdict = check("06.3", by_blocks(lambda blocks: (len(blocks), blocks[-1])), model=small)
    assert not verdict and "freed and prefilled again into other blocks" in repr(verdict)
