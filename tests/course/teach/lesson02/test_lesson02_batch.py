"""Lesson 02: wrong ways to allocate a batch once are told what is wrong, and right ones pass."""

from __future__ import annotations

import math

import torch
from wrong_answers import changed, right_answers, wrong_answers

from stages import PreallocGather


class BatchOfMyOwn(PreallocGather):
    """Right, with one allocation. The mistakes below change what of the batch a layer gets."""

    def build_batched_past(self, seqs, longest):
        c = self.config
        batch = self.allocate(c.num_layers, 2, len(seqs), c.num_kv_heads, longest, c.head_dim)
        past = []
        for layer in range(c.num_layers):
            k, v = self.part(batch, layer)
            for i, seq in enumerate(seqs):
                self.gather_sequence_into(seq, layer, k[i], v[i])
            past.append((k, v))
        return past

    def allocate(self, *shape):
        return torch.zeros(shape, dtype=self.model.dtype)

    def part(self, batch, layer):
        return batch[layer].unbind(0)


batched = BatchOfMyOwn.build_batched_past


def allocating(allocate):
    return changed(BatchOfMyOwn, allocate=lambda self, *shape: allocate(self.config, *shape).to(self.model.dtype))


def parting(part):
    return changed(BatchOfMyOwn, part=lambda self, batch, layer: part(batch, layer))


def returning(past):
    """past: of the right one."""
    return changed(BatchOfMyOwn, build_batched_past=lambda *arguments: past(batched(*arguments)))


class FirstSequenceAlone(BatchOfMyOwn):
    def build_batched_past(self, seqs, longest):
        return [(k.expand(len(seqs), -1, -1, -1), v) for k, v in super().build_batched_past(seqs[:1], longest)]


class LongestFirst(BatchOfMyOwn):
    """Each sequence's row lies where its length says, not where the batch has it."""

    def build_batched_past(self, seqs, longest):
        return super().build_batched_past(sorted(seqs, key=len, reverse=True), longest)


class KeptForEver(BatchOfMyOwn):
    """One allocation a step, and each of them stays."""

    def allocate(self, *shape):
        self.kept = [*getattr(self, "kept", []), super().allocate(*shape)]
        return self.kept[-1]


class StaleBatch(BatchOfMyOwn):
    """Hands the first batch out in every step."""

    def build_batched_past(self, seqs, longest):
        self.past = getattr(self, "past", None) or super().build_batched_past(seqs, longest)
        return self.past


test_wrong_allocations = wrong_answers(
    "02.2",
    {
        "room for one layer": (
            parting(lambda batch, layer: batch[0].unbind(0)),
            "layer 0, prompt 0 (2 cached tokens) of a new batch: k: these are layer 1's keys",
        ),
        "room for too many layers": (
            allocating(lambda config, layers, *shape: torch.zeros(config.hidden_size, *shape)),
            "bytes are filled with zeros, and K and V of all layers are 10,240",
        ),
        "as many layers as heads": (
            allocating(lambda config, layers, *shape: torch.zeros(config.num_heads, *shape)),
            "num_layers=5, num_kv_heads=1, block_size=4: ",
        ),
        "K and V in one tensor": (
            parting(lambda batch, layer: (batch[layer, 0], batch[layer, 0])),
            "k: these are the values, not the keys",
        ),
        "an allocation a layer": (
            changed(PreallocGather, build_batched_past=lambda *past: PreallocGather.build_batched_past(*past)),
            "the gather makes 4 zeroed tensors a step; the budget is 1",
        ),
        "one for K, one for V": (
            allocating(lambda config, layers, two, *row: torch.stack([torch.zeros(layers, *row) for _ in "kv"], dim=1)),
            "the gather makes 2 zeroed tensors a step; the budget is 1",
        ),
        "copies of one": (
            parting(lambda batch, layer: batch[layer].clone().unbind(0)),
            "lie in 2 tensors; the budget is 1, of which each layer's k and v are views",
        ),
        "always fp32": (
            changed(BatchOfMyOwn, allocate=lambda self, *shape: torch.zeros(shape)),
            "a model in bf16: layer 0, prompt 0 (150 cached tokens) of a new batch: k: dtype float32",
        ),
        "torch.empty": (  # what it holds stays, after a sequence's tokens
            allocating(lambda config, *shape: torch.empty(shape)),
            "k: the slots after a sequence's tokens were never written",
        ),
        "a copy filled in": (
            returning(lambda past: [(torch.empty_like(k).zero_(), v) for k, v in past]),
            "layer 0, prompt 0 (2 cached tokens) of a new batch: k: nothing is written there",
        ),
        "one layer returned": (
            returning(lambda past: past[-1]),
            "layer 0: expected a pair of tensors (k, v), got Tensor",
        ),
        "tokens before heads": (
            returning(lambda past: [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in past]),
            "k: dimensions in another order: values right after permute(0, 2, 1, 3)",
        ),
        "one row for all": (FirstSequenceAlone, "layer 0: v: shape (1, 1, 2, 4), expected (2, 1, 2, 4)"),
        "the longest first": (LongestFirst, "prompt_lens=[4, 8], num_steps=0, num_layers=2"),
        "every batch kept": (KeptForEver, "bytes of a batch stay behind when all its sequences are freed"),
        "a batch of the step before": (StaleBatch, "layer 0: k: shape (1, 2, 2, 4), expected (1, 2, 3, 4)"),
    },
    model="small",
)


class PadsZeroed(BatchOfMyOwn):
    """Nothing is zeroed but what no token fills."""

    def build_batched_past(self, seqs, longest):
        self.lengths = [seq.num_cached_tokens for seq in seqs]
        return super().build_batched_past(seqs, longest)

    def allocate(self, *shape):
        batch = torch.empty(shape, dtype=self.model.dtype)
        for i, n in enumerate(self.lengths):
            if n < shape[-2]:
                batch[:, :, i, :, n:].zero_()
        return batch


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


test_right_allocations = right_answers(
    "02.2",
    {
        "pads zeroed alone": PadsZeroed,
        "one long row": OneLongRow,
    },
    model="small",
)
