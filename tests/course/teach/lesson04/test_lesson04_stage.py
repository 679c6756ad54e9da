"""Lesson 04: wrong stages without a cat are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import changed, right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import VectorizedGather

pytestmark = pytest.mark.slow


# 04.3


def without_cat(changes=None):
    return solution("04.3", changes, VectorizedGather=VectorizedGather)


WithoutCat = without_cat()
WRITES = "keys[:, :, -1], values[:, :, -1] = k, v"
OWN_COLUMN = """rows, lengths = range(len(k)), self.mask[:, 0, 0, :-1].sum(1)
        keys[rows, :, lengths], values[rows, :, lengths] = k, v"""


class LastBlockAgain(WithoutCat):
    """Looks the new column up in the block of the last token: wrong when it starts a new one."""

    def build_batched_past(self, seqs, longest):
        columns = torch.arange(longest + 1).clamp(max=longest - 1)
        return [
            (k[:, :, columns], v[:, :, columns]) for k, v in VectorizedGather.build_batched_past(self, seqs, longest)
        ]


class OverwritesAtEdge(WithoutCat):
    """Stores the new token in the block of the token before it."""

    def slot_mapping(self, seqs):
        blocks, slots = super().slot_mapping(seqs)
        before = [self.tables.of(seq.seq_id, 0)[(seq.num_cached_tokens - 1) // self.block_size] for seq in seqs]
        return torch.tensor(before).expand_as(blocks), slots


class KeepsItsBlocks(WithoutCat):
    """Looks block ids up only when the batch or its number of columns of blocks has changed."""

    kept = None, None

    def block_ids(self, seqs, longest):
        key = [seq.seq_id for seq in seqs], self.tables.blocks_for(longest)
        if self.kept[0] != key:
            self.kept = key, super().block_ids(seqs, longest)
        return self.kept[1]


class CatWhereMixed(WithoutCat):
    def build(self, seqs):
        self.base = VectorizedGather if len({*map(len, seqs)}) > 1 else WithoutCat
        return self.base.build(self, seqs)

    def build_batched_past(self, seqs, longest):
        return self.base.build_batched_past(self, seqs, longest)


test_a_wrong_stage = wrong_answers(
    "04.3",
    {
        "new token forgotten": (
            without_cat({WRITES: "pass"}),
            "is the new token in its column before attention reads?",
        ),
        "new token in its own column": (without_cat({WRITES: OWN_COLUMN}), "equal lengths are right, mixed ones not"),
        "new token over the block before": (OverwritesAtEdge, "wrong where the last column starts a new one"),
        "still the cat of stage 03": (
            changed(VectorizedGather, build=lambda *arguments: VectorizedGather.build(*arguments)),
            "with 1 × 3 tokens cached, the step makes 4 cats; the budget is 0",
        ),
        "gathered, then copied": (
            without_cat({"= self.past[layer]": "= [past.contiguous() for past in self.past[layer]]"}),
            "Is what was gathered copied once more?",
        ),
        "a cat where lengths differ": (CatWhereMixed, "with [70, 3, 64, 9, 70, 3, 64, 9, 70, 3, 64, 9] tokens cached"),
        "copied where lengths differ": (
            without_cat(
                {WRITES: f"if not self.mask.all(): keys, values = keys.clone(), values.clone()\n        {WRITES}"}
            ),
            "Is what was gathered copied once more?",
        ),
        "column indexed again": (LastBlockAgain, "Is what was gathered copied once more?"),
        "an instance": ([VectorizedGather], "expected a subclass of a stage"),
        "block ids kept too long": (KeepsItsBlocks, "wrong where the last column starts a new one"),
        "padded by copies": (
            without_cat(
                {
                    "longest + 1)": "longest)",
                    "LastColumn(step.past,": "LastColumn([[F.pad(x, (0, 0, 0, 1)) for x in p] for p in step.past],",
                }
            ),
            "with 1 × 3 tokens cached, the step copies 4,144 bytes; the budget is 3,200",
        ),
    },
    model="small",
)


class PoolFirst(VectorizedGather):
    """The new token goes into the pool first, and is gathered with all others."""

    def build(self, seqs):
        stage, places = self, self.slot_mapping(seqs)
        lengths = torch.tensor([seq.num_cached_tokens for seq in seqs], device=self.model.device)
        tokens = torch.arange(int(lengths.max()) + 1, device=self.model.device)
        blocks = self.block_ids(seqs, len(tokens)).index_select(2, tokens // self.block_size)
        mask = (tokens <= lengths[:, None])[:, None, None]

        def step(layer, q, k, v):
            (block, slot), dense = places, []
            for pool, new in ((stage.k_cache[layer], k), (stage.v_cache[layer], v)):
                pool[block[layer], slot] = new
                dense.append(pool[blocks[layer], tokens % stage.block_size].transpose(1, 2))
            return F.scaled_dot_product_attention(q.unsqueeze(2), *dense, attn_mask=mask, enable_gqa=True).squeeze(2)

        return step

    def append(self, seqs, step):
        """Nothing is left to do."""


class ByAFunction(WithoutCat):
    def build(self, seqs):
        step = VectorizedGather.build(self, seqs)

        def attend(layer, q, k, v):
            keys, values = step.past[layer]
            keys.select(2, -1).copy_(k)
            values.select(2, -1).copy_(v)
            step.presents.append((keys, values))
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, step.mask, enable_gqa=True)[:, :, 0]

        attend.presents = step.presents
        return attend


test_a_stage_without_a_cat = right_answers(
    "04.3",
    {"the pool first": PoolFirst, "a function": ByAFunction},
    model="small",
)
