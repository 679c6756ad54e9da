"""Lesson 08: each mistake of the draft is named by its promise, and the draft without them passes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lesson08_solutions import Draft, Repaired
from wrong_answers import changed, right_answers, wrong_answers

from course.teach import contract
from course.teach.exercises.solutions import solution
from course.teach.lesson08.cat_append import CatAppend
from roseinfer.stage import Stage

pytestmark = pytest.mark.slow


repaired_with = partial(solution, "08.1", __name__=__name__, torch=torch, Stage=Stage, Draft=Draft)


class KindByKind(Repaired):
    def append(self, seqs, step):
        for layer, new in enumerate(step.new):
            for i, seq in enumerate(seqs):
                cache = self.caches[seq.seq_id][layer]
                cache[:] = [torch.cat([old, x[i][:, None]], dim=1) for old, x in zip(cache, new, strict=True)]


class AsksFirst(Repaired):
    def free(self, seq):
        Stage.free(self, seq)
        if seq.seq_id in self.caches:
            del self.caches[seq.seq_id]


test_a_draft_with_mistakes = wrong_answers(
    "08.1",
    {
        "as it was": (changed(Draft), "the promise **One sequence**"),
        "keys among the values": (changed(Repaired, append=Draft.append), "the promise **One sequence**"),
        "the longest one's position": (
            repaired_with({"    positions = Stage.positions\n": ""}),
            "the promise **A batch of mixed lengths**",
        ),
        "blocks kept": (
            repaired_with({"        Stage.free(self, seq)\n": ""}),
            "the promise **Every block comes back**",
        ),
        "the error in layer 0": (
            repaired_with({"pop(seq.seq_id, None)": "pop(seq.seq_id)"}),
            "the caller gets a KeyError instead",
        ),
        "nothing appended": (repaired_with({"in enumerate(step.new)": "in ()"}), "the promise **One sequence**"),
        "keys and values swapped": (repaired_with({"(k, v)": "(v, k)"}), "the promise **One sequence**"),
        "no stage": (int, "expected a subclass of a stage, got int"),
    },
    model="small",
)


test_a_repaired_draft = right_answers("08.1", {"kind by kind": KindByKind, "asks first": AsksFirst}, model="small")


def test_the_stage_that_the_lesson_goes_on_with_keeps_the_contract():
    assert contract(CatAppend, quick=True)
