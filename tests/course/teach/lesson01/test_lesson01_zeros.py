"""Lesson 01: wrong gathers without zeros are told what is wrong, and right ones pass."""

from __future__ import annotations

import pytest
import torch
from wrong_answers import changed, right_answers, wrong_answers

from stages import NaiveCat

pytestmark = pytest.mark.slow


def joined(parts):
    return torch.cat(parts, dim=1).unsqueeze(0)


class GatherOfMyOwn(NaiveCat):
    """Right and without zeros. The mistakes below change how a sequence's parts are put together."""

    put_together = staticmethod(joined)

    def gather_sequence(self, seq, layer):
        filled = list(self.filled_blocks(seq, layer, seq.num_cached_tokens))
        keys = [k[:, : end - start] for start, end, (k, _) in filled]
        values = [v[:, : end - start] for start, end, (_, v) in filled]
        return self.put_together(keys), self.put_together(values)


gathered = GatherOfMyOwn.gather_sequence


def joining(join):
    return changed(GatherOfMyOwn, put_together=staticmethod(join))


def gathering(gather):
    return changed(GatherOfMyOwn, gather_sequence=gather)


def keeping(state, **members):
    """Gathers a sequence once for each state that it is in, and keeps what it has gathered."""

    def gather_sequence(self, seq, layer):
        if not hasattr(self, "kept"):
            self.kept = {}
        return self.kept.setdefault((seq.seq_id, layer, state(seq)), gathered(self, seq, layer))

    return changed(GatherOfMyOwn, gather_sequence=gather_sequence, **members)


KEPT = {}


def kept_by_the_module(self, seq, layer):
    KEPT[seq.seq_id, layer] = gathered(self, seq, layer)
    return KEPT[seq.seq_id, layer]


def all_but_the_last_token(parts):
    out = torch.empty_like(joined(parts))
    out[:, :, :-1] = joined(parts)[:, :, :-1]
    return out


class WholeBlocks(NaiveCat):
    def gather_sequence(self, seq, layer):
        blocks = [block for *_, block in self.filled_blocks(seq, layer, seq.num_cached_tokens)]
        return tuple(torch.cat(parts, dim=1).unsqueeze(0) for parts in zip(*blocks, strict=True))


class BlocksOf64(NaiveCat):
    """Takes the default block size for every stage's."""

    def gather_sequence(self, seq, layer):
        blocks = [self.blocks[layer][i] for i in self.tables.of(seq.seq_id, layer)[: -(-seq.num_cached_tokens // 64)]]
        return tuple(torch.cat(parts, 1)[None, :, : seq.num_cached_tokens] for parts in zip(*blocks, strict=True))


test_wrong_gathers_without_zeros = wrong_answers(
    "01.3",
    {
        "first block alone": (
            joining(lambda parts: joined(parts[:1])),
            "layer 0, prompt 0 (7 cached tokens) of a new batch: k: shape (1, 1, 6, 4), expected (1, 1, 7, 4)",
        ),
        "whole blocks": (WholeBlocks, "k: shape (1, 2, 6, 4), expected (1, 2, 2, 4)"),
        "blocks of 64 tokens": (
            BlocksOf64,
            "(7 cached tokens) of a new batch: k: shape (1, 1, 6, 4), expected (1, 1, 7",
        ),
        "the last token not written": (
            joining(all_but_the_last_token),
            "k: 8 of 16 values are NaN, first at (0, 0, 1, 0)",
        ),
        "no leading dimension": (
            joining(lambda parts: torch.cat(parts, dim=1)),
            "k: shape (2, 2, 4), expected (1, 2, 2, 4): values right, only",
        ),
        "tokens before heads": (
            joining(lambda parts: joined(parts).transpose(1, 2)),
            "k: dimensions in another order: values right after permute(0, 2",
        ),
        "keys for values": (
            gathering(lambda self, seq, layer: gathered(self, seq, layer)[:1] * 2),
            "v: these are the keys, not the values",
        ),
        "keys alone": (
            gathering(lambda self, seq, layer: gathered(self, seq, layer)[0]),
            "layer 0: expected a pair of tensors (k, v), got Tensor",
        ),
        "first layer alone": (
            gathering(lambda self, seq, layer: gathered(self, seq, 0)),
            "layer 1, prompt 0 (2 cached tokens) of a new batch: k: these are layer 0's keys",
        ),
        "gathered once for all steps": (
            keeping(lambda seq: None),
            "(3 cached tokens) after step 1: k: shape (1, 2, 2, 4), expected (1, 2, 3, 4)",
        ),
        "what was gathered is kept": (
            keeping(lambda seq: seq.num_cached_tokens),
            "bytes of a batch stay behind when all its sequences are freed",
        ),
        "kept by the class": (keeping(len, kept={}), "bytes of a batch stay behind when all its sequences are freed"),
        "kept by the module": (gathering(kept_by_the_module), "bytes of a batch stay behind when all its sequences"),
        "zeros for a third block": (
            joining(lambda parts: joined(parts) if len(parts) < 3 else torch.zeros(1).to(parts[0]).add(joined(parts))),
            "with 133 tokens a sequence the gather still makes 16 zeroed",
        ),
        "still the zeros of stage 01": (
            changed(NaiveCat, gather_sequence=lambda *arguments: NaiveCat.gather_sequence(*arguments)),
            "with 5 tokens a sequence the gather still makes 16 zeroed tensors",
        ),
        "zeros for a second block": (
            joining(lambda parts: joined(parts) if len(parts) == 1 else torch.zeros(1).to(parts[0]).add(joined(parts))),
            "with 69 tokens a sequence the gather still makes 16 zeroed",
        ),
        "always fp32": (
            joining(lambda parts: joined(parts).float()),
            "a model in bf16: layer 0, prompt 0 (150 cached tokens) of a new batch: k: dtype float32",
        ),
        "torch.full": (
            joining(lambda parts: torch.full_like(joined(parts), 0.0).copy_(joined(parts))),
            "the gather still makes 16 zeroed tensors a step; the budget is 0",
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


class OnlyWhatIsNew(GatherOfMyOwn):
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
