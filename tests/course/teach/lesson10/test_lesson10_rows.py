"""Lesson 10: rows kept in a wrong way are told what is wrong, and right ones pass."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from wrong_answers import assert_accepted, right_cases, wrong_answers

from course.teach.exercises.solutions import solution
from roseinfer.kernels import paged_numba
from stages import NumbaPaged, OneTable

pytestmark = pytest.mark.slow


kept_with = partial(solution, "10.3", OneTable=OneTable)
ByVersion = kept_with()
VERSION, BLOCKS = "self.tables.version(seq.seq_id)", "self.tables.of(seq.seq_id, 0)"
WRITTEN, NOTED = "            super().write_row(row, seq)\n", "            self.in_row[row] = version\n"


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


class ForgetsWhenItShrinks(ByVersion):
    batch = 0

    def write_tables(self, seqs, num_new):
        if len(seqs) != self.batch:
            self.in_row.clear()
            self.batch = len(seqs)
        return super().write_tables(seqs, num_new)


test_wrong_kept_rows = wrong_answers(
    "10.3",
    {
        "another family": (NumbaPaged, "expected a subclass of OneTable, got NumbaPaged"),
        "by the sequence": (
            kept_with({VERSION: "seq.seq_id"}),
            "in a step where one of 40 sequences takes a block, row 1",
        ),
        "by the number of blocks": (
            kept_with({VERSION: f"len({BLOCKS})"}),
            "step D, B: after the last of these calls, row 0",
        ),
        "by the post's key": (
            kept_with({VERSION: f"(seq.seq_id, len({BLOCKS}), {BLOCKS}[-1])"}),
            "row 1 of the table begins with [0, 1, 2], expected [1, 0, 2]",
        ),
        "by a hash of 8 bits": (kept_with({VERSION: f"(seq.seq_id, hash(tuple({BLOCKS})) % 256)"}), " calls; free E"),
        "by versions in 8 bits": (
            kept_with({VERSION: f"{VERSION} % 2**8"}),
            "row 1 of the table begins with [1, 0, 0], expected [1, 2, 3]",
        ),
        "by the first four and the last four": (
            kept_with({VERSION: f"(seq.seq_id, {BLOCKS}[:4], {BLOCKS}[-4:], len({BLOCKS}))"}),
            "begins with [1, 2, 3, 4, 5, 6, 7, 8, 9], expected [1, 2, 3, 4, 0, 6, 7, 8, 9]",
        ),
        # Which grows in place and so is always equal to itself.
        "by the engine's own list": (kept_with({VERSION: BLOCKS}), "the table begins"),
        # A sequence that is in another row now is not written there.
        "a row a sequence": (
            kept_with({"get(row)": "get(seq.seq_id)", "[row]": "[seq.seq_id]"}),
            "in the first step of 40 sequences, row",
        ),
        "prefills forgotten": (
            kept_with({NOTED: f"            if seq.num_cached_tokens:\n    {NOTED}"}),
            "row 0 of the table begins",
        ),
        "forgets when the batch shrinks": (
            ForgetsWhenItShrinks,
            "a step without the batch's last sequence writes 39 rows, expected 0",
        ),
        "noted before it is written": (
            kept_with({WRITTEN: NOTED + WRITTEN}),
            "a step of A that ends in an error; step A: after the last of these calls, row 0",
        ),
        "uncounted": (
            kept_with(
                {"super().write_row(row, seq)": f"self.inputs_on_host['block_tables'][row, : len({BLOCKS})] = {BLOCKS}"}
            ),
            "the first step of 40 sequences writes 0 rows, expected 40",
        ),
    },
    model="small",
)


@right_cases("10.3", {"by content": ByContent, "in an array": InOneArray})
def test_right_kept_rows(answer, small, monkeypatch):
    """The check compiles attention for one dtype: each takes Numba about ten seconds, once per machine."""
    asked, compiled_for = set(), paged_numba.compiled_for

    def noted(dtype):
        asked.add(dtype)
        return compiled_for(dtype)

    monkeypatch.setattr(paged_numba, "compiled_for", noted)
    assert_accepted("10.3", answer, model=small)
    assert asked == {torch.float32}
