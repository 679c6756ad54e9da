"""Lesson 03: wrong appends are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
from wrong_answers import changed, right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import SelectAppend
from stages.s01_naive_cat import DenseStep

pytestmark = pytest.mark.slow


def fewer_selects(changes=None):
    return solution("03.1", changes, SelectAppend=SelectAppend)


FewerSelects = fewer_selects()
NEW, WRITTEN = "enumerate(step.new)", "k[i], v[i]"


class OverTheTokenBefore(FewerSelects):
    def append_token(self, seq, layer, k, v):
        index, slot = divmod(seq.num_cached_tokens - 1, self.block_size)
        k_block, v_block = self.blocks[layer][self.tables.of(seq.seq_id, layer)[index]]
        k_block[:, slot], v_block[:, slot] = k, v


class SelectForEach(SelectAppend):
    def append(self, seqs, step):
        for layer, (k_batch, v_batch) in enumerate(step.presents):
            new = k_batch.size(2) - 1
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k_batch[i, :, new], v_batch[i, :, new])


class KeptByTheStage(SelectAppend):
    """The new k and v lie in a list of the stage's, which append empties: a step that fails leaves some there."""

    def build(self, seqs):
        step = super().build(seqs)
        self.new = getattr(self, "new", [])

        def attend(layer, q, k, v):
            self.new.append((k, v))
            return step(layer, q, k, v)

        return attend

    def append(self, seqs, step):
        for layer, (k, v) in enumerate(self.new[: self.config.num_layers]):
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k[i], v[i])
        self.new = []


class NeverEmptied(KeptByTheStage):
    """Takes the newest of a list that only grows."""

    def append(self, seqs, step):
        new, all_new = self.new[-self.config.num_layers :], self.new
        self.new = new
        super().append(seqs, step)
        self.new = all_new


class OldBlock(FewerSelects):
    """A sequence's open block is looked up at its edge, and kept past a free."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.open_blocks = {}

    def append_token(self, seq, layer, k, v):
        index, slot = divmod(seq.num_cached_tokens, self.block_size)
        if slot == 0 or (seq.seq_id, layer) not in self.open_blocks:
            self.open_blocks[seq.seq_id, layer] = self.blocks[layer][self.tables.of(seq.seq_id, layer)[index]]
        k_block, v_block = self.open_blocks[seq.seq_id, layer]
        k_block[:, slot], v_block[:, slot] = k, v


AFTER = "layer 0, prompt 0 (3 cached tokens) after step 1: "


test_a_wrong_append = wrong_answers(
    "03.1",
    {
        "keys for values": (
            fewer_selects({WRITTEN: "k[i], k[i]"}),
            f"{AFTER}v: token 2: these are the keys, not the values",
        ),
        "the last layer for all": (
            fewer_selects({NEW: "enumerate([step.new[-1]] * len(step.new))"}),
            f"{AFTER}k: token 2: these are layer 1's keys",
        ),
        "one layer written": (
            fewer_selects({NEW: "enumerate(step.new[:1])"}),
            "layer 1, prompt 0 (3 cached tokens) after step 1: k: token 2: nothing is written there",
        ),
        "the first sequence for all": (
            fewer_selects({WRITTEN: "k[0], v[0]"}),
            "after step 1: k: token 1: these are prompt 0's keys",
        ),
        "over the token before": (OverTheTokenBefore, f"{AFTER}k: 16 of 24 values differ, first at (0, 0, 1, 0)"),
        "left behind by a step that failed": (
            KeptByTheStage,
            "the promise **A failed step is made again**",
        ),
        "to the block of the time before": (OldBlock, "the promise **Back in other blocks**"),
        "a list that only grows": (NeverEmptied, "bytes of a batch stay behind when all its sequences are freed"),
        "select for each sequence": (SelectForEach, "16 selects too many (48, the budget is 32, 4 per layer"),
        "as stage 03 does it": (
            changed(SelectAppend, append=lambda *arguments: SelectAppend.append(*arguments)),
            "append makes 4 selects too many (36, the budget is 32",
        ),
        "the step, not the stage": (DenseStep, "expected a subclass of a stage"),
    },
    model="small",
)


class FromTheBatch(SelectAppend):
    """Nothing is kept: the last column of what attention read."""

    def append(self, seqs, step):
        for layer, (k, v) in enumerate(step.presents):
            columns = k[:, :, -1:].unbind(0), v[:, :, -1:].unbind(0)
            for seq, k_new, v_new in zip(seqs, *columns, strict=True):
                self.append_token(seq, layer, k_new.squeeze(1), v_new.squeeze(1))


class WrittenInTheStep(SelectAppend):
    """Attention's own call keeps the tensors in a dict, made again for each step."""

    def build(self, seqs):
        step = super().build(seqs)
        new = {}

        def attend(layer, q, k, v):
            new[layer] = k, v
            return step(layer, q, k, v)

        attend.new = new
        return attend

    def append(self, seqs, step):
        for i, seq in enumerate(seqs):
            for layer, (k, v) in step.new.items():
                self.append_token(seq, layer, k[i], v[i])


test_a_right_append = right_answers(
    "03.1",
    {"from the batch": FromTheBatch, "a function for a step": WrittenInTheStep},
    model="small",
)
