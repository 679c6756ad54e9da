"""Lesson 10: rows kept in a wrong way are told what is wrong, and right ones pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from wrong_answers import assert_accepted, right_answers, wrong_answers

from roseinfer.kernels import paged_numba
from stages import NumbaPaged, OneTable

pytestmark = pytest.mark.slow


class Remembers(OneTable):
    """Leaves a row as it is while `state` is what it was."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.in_row = {}

    def write_row(self, row, seq):
        state = self.state(seq)
        if self.in_row.get(row) != state:
            super().write_row(row, seq)
            self.in_row[row] = state


def remembering(state):
    """state: of a sequence's blocks and the sequence."""
    return type("KeptRows", (Remembers,), {"state": lambda self, seq: state(self.tables.of(seq.seq_id, 0), seq)})


def writing(write_row):
    return type("KeptRows", (OneTable,), {"write_row": write_row})


class ByVersion(Remembers):
    def state(self, seq):
        return self.tables.version(seq.seq_id)


class ByShortVersion(Remembers):
    def state(self, seq):
        return np.int64(self.tables.version(seq.seq_id)).astype(np.uint16)


class ByContent(OneTable):
    """Compares what stands in the row with what should."""

    def write_row(self, row, seq):
        blocks = self.tables.of(seq.seq_id, 0)
        if self.inputs_on_host["block_tables"][row, : len(blocks)].tolist() != blocks:
            super().write_row(row, seq)


class InOneArray(OneTable):
    """The whole of it in write_tables, with an array of versions."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.versions = np.zeros(self.max_num_seqs, np.int64)
        self.stale = set()

    def write_tables(self, seqs, num_new):
        versions = np.array([self.tables.version(seq.seq_id) for seq in seqs])
        self.stale = set(np.flatnonzero(versions != self.versions[: len(seqs)]).tolist())
        step = super().write_tables(seqs, num_new)
        self.versions[: len(seqs)] = versions
        return step

    def write_row(self, row, seq):
        if row in self.stale:
            super().write_row(row, seq)


class NotedFirst(ByVersion):
    """An error while the row is written, and it is taken for written."""

    def write_row(self, row, seq):
        if self.in_row.get(row) != self.state(seq):
            self.in_row[row] = self.state(seq)
            OneTable.write_row(self, row, seq)


class ARowASequence(OneTable):
    """Remembers by sequence, not by row: a sequence that is in another row now is not written there."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.written = {}

    def write_row(self, row, seq):
        version = self.tables.version(seq.seq_id)
        if self.written.get(seq.seq_id) != version:
            super().write_row(row, seq)
            self.written[seq.seq_id] = version


class PrefillsForgotten(ByVersion):
    """Takes a prefill for nothing that touches the table."""

    def prompt_row(self, seq):
        OneTable.write_row(self, 0, seq)

    def write_tables(self, seqs, num_new):
        if num_new != [1] * len(seqs):
            self.write_row = lambda row, seq: self.prompt_row(seq)
        try:
            return super().write_tables(seqs, num_new)
        finally:
            vars(self).pop("write_row", None)


class AllOrNothing(ByVersion):
    """One change, and every row is written."""

    def write_tables(self, seqs, num_new):
        versions = [self.tables.version(seq.seq_id) for seq in seqs]
        if versions != [self.in_row.get(row) for row in range(len(seqs))]:
            self.in_row.clear()
        return super().write_tables(seqs, num_new)


class ForgetsWhenItShrinks(ByVersion):
    batch = 0

    def write_tables(self, seqs, num_new):
        if len(seqs) != self.batch:
            self.in_row.clear()
            self.batch = len(seqs)
        return super().write_tables(seqs, num_new)


def write_at_edges(self, row, seq):
    """When the new token is the first of its block; but a batch may change at any time."""
    if seq.num_cached_tokens % self.block_size == 0:
        OneTable.write_row(self, row, seq)


def write_uncounted(self, row, seq):
    blocks = self.tables.of(seq.seq_id, 0)
    self.inputs_on_host["block_tables"][row, : len(blocks)] = blocks


test_wrong_kept_rows = wrong_answers(
    "10.3",
    {
        "no class": (lambda: None, "expected a subclass of OneTable, got <lambda>"),
        "another family": (NumbaPaged, "expected a subclass of OneTable, got NumbaPaged"),
        "every row, in other words": (
            writing(lambda self, row, seq: OneTable.write_row(self, row, seq)),
            "a step where one of 40 sequences takes a block writes 40 rows, expected at most 1",
        ),
        "by the sequence": (
            remembering(lambda blocks, seq: seq.seq_id),
            "in a step where one of 40 sequences takes a block, row 1",
        ),
        "by the number of blocks": (
            remembering(lambda blocks, seq: len(blocks)),
            "step B, D: after the last of these calls, row 0",
        ),
        "by the post's key": (
            remembering(lambda blocks, seq: (seq.seq_id, len(blocks), blocks[-1])),
            "row 1 of the table begins with [0, 1, 2], expected [1, 0, 2]",
        ),
        # Which grows in place and so is always equal to itself.
        "by the engine's own list": (remembering(lambda blocks, seq: blocks), "the table begins"),
        "by the set of ids": (
            remembering(lambda blocks, seq: frozenset(blocks)),
            "after the last of these calls, row",
        ),
        "by a hash of 8 bits": (
            remembering(lambda blocks, seq: hash(tuple(blocks)) % 256),
            "after thousands of sequences that came and went, row 0",
        ),
        "versions in 16 bits": (ByShortVersion, "when a table has changed 65,536 times since a row was written, row 1"),
        "a row a sequence": (ARowASequence, "in the first step, row"),
        "prefills forgotten": (PrefillsForgotten, "row 0 of the table begins"),
        "all or nothing": (AllOrNothing, "takes a block writes 40 rows, expected at most 1"),
        "at edges": (writing(write_at_edges), "in the first step, row"),
        "forgets when the batch shrinks": (
            ForgetsWhenItShrinks,
            "a step without the batch's last sequence writes 39 rows, expected at most 0",
        ),
        "noted before it is written": (NotedFirst, "when an error ended the step before, and it is repeated, row 0"),
        "uncounted": (writing(write_uncounted), "rows_built grows by 0, expected 40"),
    },
    model="small",
)


test_right_kept_rows = right_answers(
    "10.3",
    {
        "by version": ByVersion,
        "by content": ByContent,
        "by a copy": remembering(lambda blocks, seq: (seq.seq_id, *blocks)),
        "in an array": InOneArray,
    },
    model="small",
)


def test_the_check_compiles_attention_for_one_dtype(small, monkeypatch):
    """Each takes Numba about ten seconds, once per machine."""
    asked, compiled_for = set(), paged_numba.compiled_for

    def noted(dtype):
        asked.add(dtype)
        return compiled_for(dtype)

    monkeypatch.setattr(paged_numba, "compiled_for", noted)
    assert_accepted("10.3", ByVersion, model=small)
    assert asked == {torch.float32}
