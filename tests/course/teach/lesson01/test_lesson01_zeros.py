"""Lesson 01: wrong gathers without zeros are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
from wrong_answers import changed, right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import NaiveCat

pytestmark = pytest.mark.slow


def no_zeros(changes=None):
    return solution("01.3", changes, NaiveCat=NaiveCat, torch=torch)


NoZeros = no_zeros()
LEFT_BEHIND = "bytes of a batch stay behind when all its sequences are freed"


def keeping(state, **members):
    """Gathers a sequence once for each state that it is in, and keeps what it has gathered."""

    def gather_sequence(self, seq, layer):
        if not hasattr(self, "kept"):
            self.kept = {}
        return self.kept.setdefault((seq.seq_id, layer, state(seq)), NoZeros.gather_sequence(self, seq, layer))

    return changed(NoZeros, gather_sequence=gather_sequence, **members)


KEPT = {}


def kept_by_the_module(self, seq, layer):
    KEPT[seq.seq_id, layer] = NoZeros.gather_sequence(self, seq, layer)
    return KEPT[seq.seq_id, layer]


def zeros_from_block(number):
    """Fills zeroed tensors where a sequence has so many blocks."""

    def gather_sequence(self, seq, layer):
        gathered = NoZeros.gather_sequence(self, seq, layer)
        few = seq.num_cached_tokens <= (number - 1) * self.block_size
        return gathered if few else tuple(torch.zeros_like(part).copy_(part) for part in gathered)

    return changed(NoZeros, gather_sequence=gather_sequence)


class BlocksOf64(NaiveCat):
    """Takes the default block size for every stage's."""

    def gather_sequence(self, seq, layer):
        blocks = [self.blocks[layer][i] for i in self.tables.of(seq.seq_id, layer)[: -(-seq.num_cached_tokens // 64)]]
        return tuple(torch.cat(parts, 1)[None, :, : seq.num_cached_tokens] for parts in zip(*blocks, strict=True))


test_wrong_gathers_without_zeros = wrong_answers(
    "01.3",
    {
        "whole blocks": (no_zeros({"[:, : end - start]": ""}), "k: shape (1, 2, 6, 4), expected (1, 2, 2, 4)"),
        "blocks of 64 tokens": (
            BlocksOf64,
            "(7 cached tokens) of a new batch: k: shape (1, 1, 6, 4), expected (1, 1, 7",
        ),
        "keys alone": (
            no_zeros({", torch.cat(vs, dim=1).unsqueeze(0)": ""}),
            "layer 0: expected a pair of tensors (k, v), got Tensor",
        ),
        "gathered once for all steps": (
            keeping(lambda seq: None),
            "(3 cached tokens) after step 1: k: shape (1, 2, 2, 4), expected (1, 2, 3, 4)",
        ),
        "what was gathered is kept": (keeping(lambda seq: seq.num_cached_tokens), LEFT_BEHIND),
        "kept by the class": (keeping(len, kept={}), LEFT_BEHIND),
        "kept by the module": (changed(NoZeros, gather_sequence=kept_by_the_module), LEFT_BEHIND),
        "still the zeros of stage 01": (
            changed(NaiveCat, gather_sequence=lambda *arguments: NaiveCat.gather_sequence(*arguments)),
            "with 5 tokens a sequence the gather still makes 16 zeroed tensors",
        ),
        "zeros for a third block": (zeros_from_block(3), "with 133 tokens a sequence the gather still makes 16 zeroed"),
        "always fp32": (
            no_zeros({"(0)": "(0).float()"}),
            "a model in bf16: layer 0, prompt 0 (150 cached tokens) of a new batch: k: dtype float32",
        ),
        "an instance": ([NaiveCat], "expected a subclass of a stage"),
    },
    model="small",
)


class Views(NaiveCat):
    """Copies nothing where one block holds all."""

    def gather_sequence(self, seq, layer):
        n = seq.num_cached_tokens
        blocks = [self.blocks[layer][i] for i in self.tables.of(seq.seq_id, layer)][: -(-n // self.block_size)]
        if len(blocks) == 1:
            return tuple(part[None, :, :n] for part in blocks[0])
        return tuple(torch.stack(parts, 1).flatten(1, 2)[None, :, :n] for parts in zip(*blocks, strict=True))


class OnlyWhatIsNew(NoZeros):
    """Keeps a running sequence's batch and puts one token after it; nothing is left when it is freed."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.gathered = {}

    def gather_sequence(self, seq, layer):
        kept = self.gathered.setdefault(seq.seq_id, {})
        if layer not in kept:
            kept[layer] = super().gather_sequence(seq, layer)
        elif kept[layer][0].size(2) < seq.num_cached_tokens:
            block, slot = divmod(seq.num_cached_tokens - 1, self.block_size)
            newest = self.blocks[layer][self.tables.of(seq.seq_id, layer)[block]]
            pairs = zip(kept[layer], newest, strict=True)
            kept[layer] = tuple(torch.cat([old, new[None, :, slot : slot + 1]], dim=2) for old, new in pairs)
        return kept[layer]

    def free(self, seq):
        super().free(seq)
        self.gathered.pop(seq.seq_id, None)


test_right_gathers_without_zeros = right_answers(
    "01.3",
    {
        "views where one block holds all": Views,
        "one token a step": OnlyWhatIsNew,
    },
    model="small",
)
