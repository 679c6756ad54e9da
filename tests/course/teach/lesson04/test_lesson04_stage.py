"""Lesson 04: wrong stages without a cat are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import changed, right_answers, wrong_answers

from stages import VectorizedGather
from stages.s03_select_append import DenseStep

pytestmark = pytest.mark.slow


# 04.3


class OneMore(VectorizedGather):
    """Gathers a column more. What a step then does is up to the subclass."""

    step_class: type[DenseStep]

    def build_batched_past(self, seqs, longest):
        return super().build_batched_past(seqs, longest + 1)

    def build(self, seqs):
        step = super().build(seqs)
        return self.step_class(step.past, step.mask)


def with_step(step):
    return changed(OneMore, step_class=step)


class Attend(DenseStep):
    def attend(self, q, keys, values):
        self.presents.append((keys, values))
        out = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=self.mask, enable_gqa=True)
        return out.squeeze(2)


class OwnColumn(Attend):
    """Writes after each sequence's own tokens; the mask lets a sequence read its own and the last column."""

    def __call__(self, layer, q, k, v):
        keys, values = self.past[layer]
        rows = torch.arange(len(k))
        lengths = self.mask[:, 0, 0, :-1].sum(1)
        keys[rows, :, lengths], values[rows, :, lengths] = k, v
        return self.attend(q, keys, values)


class LastColumn(Attend):
    def __call__(self, layer, q, k, v):
        keys, values = self.past[layer]
        keys[:, :, -1], values[:, :, -1] = k, v
        return self.attend(q, keys, values)


def attending(attend):
    return with_step(changed(LastColumn, attend=attend))


WithoutCat = with_step(LastColumn)


def without_groups(self, q, keys, values):
    self.presents.append((keys, values))
    return F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=self.mask).squeeze(2)


def without_mask(self, q, keys, values):
    self.mask = None
    return LastColumn.attend(self, q, keys, values)


def copied_again(self, layer, *qkv):
    self.past[layer] = [past.contiguous() for past in self.past[layer]]
    return LastColumn.__call__(self, layer, *qkv)


class LastBlockAgain(OneMore):
    """Looks the new column up in the block of the last token: wrong when it starts a new one."""

    step_class = LastColumn

    def build_batched_past(self, seqs, longest):
        columns = torch.arange(longest + 1).clamp(max=longest - 1)
        return [
            (k[:, :, columns], v[:, :, columns]) for k, v in VectorizedGather.build_batched_past(self, seqs, longest)
        ]


class OverwritesAtEdge(OneMore):
    """Stores the new token in the block of the token before it."""

    step_class = LastColumn

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


class AppendsTheSecondLast(WithoutCat):
    def append(self, seqs, step):
        step.presents = [(k[:, :, :-1], v[:, :, :-1]) for k, v in step.presents]
        super().append(seqs, step)


class PaddedByCopies(VectorizedGather):
    """No cat: a larger tensor is made, and what was gathered is copied into it."""

    def build(self, seqs):
        step = super().build(seqs)
        return LastColumn([tuple(F.pad(x, (0, 0, 0, 1)) for x in pair) for pair in step.past], step.mask)


test_a_wrong_stage = wrong_answers(
    "04.3",
    {
        "new token forgotten": (
            with_step(changed(Attend, __call__=lambda self, layer, q, k, v: self.attend(q, *self.past[layer]))),
            "is the new token in its column before attention reads?",
        ),
        "new token in its own column": (with_step(OwnColumn), "equal lengths are right, mixed ones not: sequence"),
        "new token over the block before": (
            OverwritesAtEdge,
            "wrong where the last column starts a new one (block size 4): sequence",
        ),
        "still the cat of stage 03": (
            changed(VectorizedGather, build=lambda *arguments: VectorizedGather.build(*arguments)),
            "with 1 × 3 tokens cached, the step makes 4 cats; the budget is 0",
        ),
        "gathered, then copied": (
            with_step(changed(LastColumn, __call__=copied_again)),
            "Is what was gathered copied once more?",
        ),
        "column indexed again": (LastBlockAgain, "Is what was gathered copied once more?"),
        "an instance": ([VectorizedGather], "expected a subclass of a stage"),
        "no groups": (attending(without_groups), "the promise **Shared KV heads**"),
        "no mask": (attending(without_mask), "equal lengths are right, mixed ones not: sequence 0"),
        "always fp32": (
            attending(lambda *arguments: LastColumn.attend(*arguments).float()),
            "the promise **Half precision**",
        ),
        "squeezed": (
            attending(lambda *arguments: LastColumn.attend(*arguments).squeeze()),
            "prompts of [9] tokens, block size 64: ",
        ),
        "block ids kept too long": (
            KeepsItsBlocks,
            "right within a block, wrong where the last column starts a new one (block size 4): sequence 2",
        ),
        "the second last column appended": (AppendsTheSecondLast, "1 × a prompt of 9 tokens: sequence 0: token"),
        "padded by copies": (
            PaddedByCopies,
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


class ByAFunction(OneMore):
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


RIGHT_STAGES = {
    "the last column": WithoutCat,
    "inherited": changed(WithoutCat),
    "the pool first": PoolFirst,
    "a function": ByAFunction,
}


test_a_stage_without_a_cat = right_answers("04.3", RIGHT_STAGES, model="small")
