"""Lesson 02: wrong ways to allocate a batch once are told what is wrong, and right ones pass."""

from __future__ import annotations

import math

import torch
from wrong_answers import changed, right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import PreallocGather


def one_allocation(changes=None):
    return solution("02.2", changes, PreallocGather=PreallocGather, torch=torch)


OneAllocation = one_allocation()
SHAPE, UNBOUND = "shape = (c.num_layers, ", "batch[layer].unbind(0)"


class LongestFirst(OneAllocation):
    """Each sequence's row lies where its length says, not where the batch has it."""

    def build_batched_past(self, seqs, longest):
        return super().build_batched_past(sorted(seqs, key=len, reverse=True), longest)


class StaleBatch(OneAllocation):
    """Hands the first batch out in every step."""

    def build_batched_past(self, seqs, longest):
        self.past = getattr(self, "past", None) or super().build_batched_past(seqs, longest)
        return self.past


def a_layer_each_past_8(stage, seqs, longest):
    base = PreallocGather if len(seqs) > 8 else OneAllocation
    return base.build_batched_past(stage, seqs, longest)


test_wrong_allocations = wrong_answers(
    "02.2",
    {
        "room for too many layers": (
            one_allocation({SHAPE: "shape = (c.hidden_size, "}),
            "bytes are filled with zeros, and K and V of all layers are 10,240",
        ),
        "an allocation a layer": (
            changed(PreallocGather, build_batched_past=lambda *past: PreallocGather.build_batched_past(*past)),
            "the gather makes 4 zeroed tensors a step; the budget is 1",
        ),
        "an allocation a layer for many sequences": (
            changed(OneAllocation, build_batched_past=a_layer_each_past_8),
            "with 11 × 9 tokens cached the gather makes 4 zeroed tensors a step; the budget is 1",
        ),
        "wider where lengths differ": (
            one_allocation(
                {
                    "longest, c.head_dim)": "longest + 64 * (len({*map(len, seqs)}) > 1), c.head_dim)",
                    "((k_batch, v_batch))": "((k_batch[:, :, :longest], v_batch[:, :, :longest]))",
                }
            ),
            "with [3, 70, 9] tokens cached ",
        ),
        "copies of one": (
            one_allocation({UNBOUND: "batch[layer].clone().unbind(0)"}),
            "lie in 2 tensors; the budget is 1, of which each layer's k and v are views",
        ),
        "always fp32": (
            one_allocation({"dtype=self.model.dtype, ": ""}),
            "a model in bf16: layer 0, prompt 0 (150 cached tokens) of a new batch: k: dtype float32",
        ),
        "torch.empty": (  # what it holds stays, after a sequence's tokens
            one_allocation({"torch.zeros": "torch.empty"}),
            "k: the slots after a sequence's tokens were never written",
        ),
        "the longest first": (LongestFirst, "prompt_lens=[4, 8], num_steps=0, num_layers=2"),
        "every batch kept": (
            one_allocation({"past = []": "past = []; self.kept = [*getattr(self, 'kept', []), batch]"}),
            "bytes of a batch stay behind when all its sequences are freed",
        ),
        "a batch of the step before": (StaleBatch, "layer 0: k: shape (1, 2, 2, 4), expected (1, 2, 3, 4)"),
    },
    model="small",
)


class OneLongRow(PreallocGather):
    """A flat tensor, cut up as needed; a tuple of lists."""

    def build_batched_past(self, seqs, longest):
        c = self.config
        shape = (len(seqs), c.num_kv_heads, longest, c.head_dim)
        flat = torch.full((2 * c.num_layers * math.prod(shape),), 0.0, dtype=self.model.dtype, device=self.model.device)
        past = tuple([k.view(shape), v.view(shape)] for k, v in flat.view(c.num_layers, 2, -1))
        for layer, rows in enumerate(past):
            for seq, k, v in zip(seqs, *rows, strict=True):
                self.gather_sequence_into(seq, layer, k, v)
        return past


class PadsZeroed(one_allocation({"torch.zeros(shape, ": "self.empty_with_zeroed_pads(shape, seqs, "})):
    """Zeroes nothing but what no token fills."""

    def empty_with_zeroed_pads(self, shape, seqs, **kind):
        batch = torch.empty(shape, **kind)
        for i, seq in enumerate(seqs):
            if seq.num_cached_tokens < shape[-2]:
                batch[:, :, i, :, seq.num_cached_tokens :].zero_()
        return batch


test_right_allocations = right_answers(
    "02.2",
    {"pads zeroed alone": PadsZeroed, "one long row": OneLongRow},
    model="small",
)
