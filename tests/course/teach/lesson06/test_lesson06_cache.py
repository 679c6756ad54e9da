"""Lesson 06: wrong ways to build nothing are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import BlockTable, BlockTableCache

pytestmark = pytest.mark.slow


VERSIONS = "[self.tables.version(seq.seq_id) for seq in seqs]"


def only_when_changed(changes=None):
    return solution("06.3", changes, BlockTableCache=BlockTableCache)


def by_blocks(key):
    """Build by a key of each sequence's blocks."""
    return only_when_changed({VERSIONS: f"[(seq.seq_id, {key}) for seq in seqs for blocks in {BLOCKS}]"})


BLOCKS = "[self.tables.of(seq.seq_id, 0)]"
OnlyWhenChanged = only_when_changed()


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


class ByRowsBuilt(BlockTableCache):
    """Skips the stack when no row had to be built, and forgets to ask who is in the batch."""

    def build_block_tables(self, seqs, out):
        before = self.rows_built
        rows = [self.rows_of(seq) for seq in seqs]
        if self.rows_built != before:
            torch.stack(rows, dim=1, out=out)


BUILDS = "super().build_block_tables(seqs, out)"
BEGINS = "after the last of these calls, row "

test_wrong_ways_to_build_nothing = wrong_answers(
    "06.3",
    {
        "by the batch": (by_blocks("None"), BEGINS),
        "by the engine's own lists": (by_blocks("blocks"), BEGINS),  # they grow in place, and equal themselves
        "by the newest version": (only_when_changed({VERSIONS: f"max({VERSIONS})"}), BEGINS),
        "by the rows built": (ByRowsBuilt, BEGINS),
        "as stage 05 does it": (BlockTable, "a step in which nothing changes builds 8 rows, the budget is 0"),
        "as stage 06 does it": (BlockTableCache, "a step in which nothing changes makes 1 aten::stack"),
        "all rows built on a change": (
            only_when_changed({BUILDS: f"self.cached_rows.clear(); {BUILDS}"}),
            "one of 3 sequences takes a new block, and 6 rows are built; the budget is 2",
        ),
        "the class's name": ("OnlyWhenChanged", "expected a subclass of BlockTableCache"),
        "by length, first and last, which 06.2 itself calls unsound": (
            by_blocks("(len(blocks), blocks[0], blocks[-1])"),
            "step A: after the last of these calls, row 0 of layer 0 begins [0, 1, 2]; the blocks are [0, 3, 2]",
        ),
        "by a hash of 8 bits": (by_blocks("hash(tuple(blocks)) % 256"), "blocks of 4 tokens: 48 calls; hold"),
        "by versions in 8 bits": (
            only_when_changed({VERSIONS: f"[version % 2**8 for version in {VERSIONS}]"}),
            "row 1 of layer 0 begins [1, 0, 0]; the blocks are [1, 2, 3]",
        ),
        "by the first four and the last four": (
            by_blocks("(len(blocks), blocks[:4], blocks[-4:])"),
            "begins [0, 1, 2, 3, 4, 5, 6, 7, 8]; the blocks are [0, 1, 2, 3, 9, 5, 6, 7, 8]",
        ),
        "an error of its own": (
            only_when_changed({BUILDS: f"{BUILDS}; assert len(seqs) < 3"}),
            "step E, D, C: checking your answer raised AssertionError",
        ),
        "remembered before it is written": (
            only_when_changed({BUILDS: f"self.in_buffer = versions; {BUILDS}"}),
            "a step of A that ends in an error; step A: after the last",
        ),
        "one batch of each size": (
            only_when_changed(
                {
                    "self.in_buffer = None": "self.in_buffer = {}",
                    "!= self.in_buffer:": "!= self.in_buffer.get(len(seqs)):",
                    "self.in_buffer = versions": "self.in_buffer[len(seqs)] = versions",
                }
            ),
            BEGINS,
        ),
    },
    model="small",
)
test_right_ways_to_build_nothing = right_answers(
    "06.3",
    {
        "forgets on free": ForgetsOnFree,
        "row by row": RowByRow,
    },
    model="small",
)
