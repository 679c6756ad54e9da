"""Lesson 02: wrong answers to its exercises are told what is wrong, and what they are made from is right."""

from __future__ import annotations

import re

import nbformat
import torch
from wrong_answers import assert_refused, wrong_answers

from roseinfer.paths import ROOT
from roseinfer.teach import check
from stages import PreallocGather

# 02.1


def kv_bytes(c, n, width, heads=None):
    return 2 * c.num_layers * (heads or c.num_kv_heads) * c.head_dim * n * width


def useful(c, lengths, w):
    return kv_bytes(c, sum(lengths), w)


def padded(c, lengths, w):
    return kv_bytes(c, len(lengths) * max(lengths), w)


@wrong_answers(
    "02.1",
    {
        "one number": (lambda c, lengths, w: padded(c, lengths, w), "expected a pair (useful, padded)"),
        "the wrong way round": (lambda *a: (padded(*a), useful(*a)), "the wrong way round"),
        "K without V": (lambda *a: (useful(*a) // 2, padded(*a)), "useful: 18,505,728: K and V are both gathered"),
        "one layer": (lambda *a: (useful(*a), padded(*a) // 12), "padded: 9,216,000: that is one layer"),
        "values for bytes": (lambda c, n, w: (useful(c, n, 1), padded(c, n, 1)), "useful: 9,252,864: those are values"),
        "query heads": (
            lambda c, n, w: (kv_bytes(c, sum(n), w, heads=c.num_heads), padded(c, n, w)),
            "lengths [64, 7], 3 KV heads, 2 bytes a value: useful: 2,617,344: query heads are not cached",
        ),
        "whole blocks": (
            lambda c, n, w: (kv_bytes(c, sum(-(-x // 64) * 64 for x in n), w), padded(c, n, w)),
            "useful: 47,185,920: slots that hold no token are not gathered",
        ),
        "no padding": (lambda *a: (useful(*a), useful(*a)), "every row is as long as the longest"),
        "the new token too": (
            lambda c, n, w: (useful(c, n, w), kv_bytes(c, len(n) * (max(n) + 1), w)),
            "the new token is not in the gathered batch",
        ),
        "one row": (lambda c, n, w: (useful(c, n, w), kv_bytes(c, max(n), w)), "padded: 36,864,000: that is one row"),
        "rounded to MB": (lambda *a: (useful(*a) / 1e6, padded(*a) / 1e6), "useful: 37.011456 is too low"),
    },
)
def test_wrong_bytes_of_padding(answer, message):
    assert_refused("02.1", answer, message)


# 02.2


def joined(blocks, n):
    return torch.cat(blocks, dim=1)[:, :n]


def into(blocks, n, out):
    for i, block in enumerate(blocks):
        start, end = 64 * i, min(64 * i + 64, n)
        out[:, start:end] = block[:, : end - start]


def whole_blocks_into(blocks, n, out):
    for i, block in enumerate(blocks):
        room = out[:, 64 * i : 64 * i + 64]
        room.copy_(block[:, : room.size(1)])


def always_to_the_front(blocks, n, out):
    for i, block in enumerate(blocks):
        end = min(64, n - 64 * i)
        out[:, :end] = block[:, :end]


def token_by_token(blocks, n, out):
    for token in range(n):
        out[:, token] = blocks[token // 64][:, token % 64]


def clone_first(blocks, n, out):
    into([block.clone() for block in blocks], n, out)


def cuts_the_cache(blocks, n, out):
    into(blocks, n, out)
    blocks[-1] = blocks[-1][:, : (n - 1) % 64 + 1]


@wrong_answers(
    "02.2",
    {
        "a new tensor returned": (lambda blocks, n, out: joined(blocks, n), "out was not changed"),
        "padding set to zero": (lambda blocks, n, out: into(blocks, n, out.zero_()), "out[:, 5:] was overwritten"),
        "whole blocks": (whole_blocks_into, "num_tokens=5: out[:, 5:] was overwritten"),
        "a token too few": (lambda b, n, out: into(b, n - 1, out), "1 of 5 tokens were not written, the first is"),
        "first block alone": (lambda b, n, out: into(b[:1], min(n, 64), out), "6 of 70 tokens were not written"),
        "every block to the front": (always_to_the_front, "6 of 70 tokens were not written, the first is out[:, 64]"),
        "full blocks alone": (lambda b, n, out: into(b, n // 64 * 64, out), "out was not changed"),
        "last block first": (
            lambda b, n, out: into([*b[1:], b[0]] if n > 64 else b, n, out),
            "num_tokens=70: 840 of 924 values differ, first at (0, 0, 0)",
        ),
        "fill, then copy": (lambda b, n, out: (out.fill_(0), into(b, n, out)), "out[:, 5:] was overwritten"),
        "cat, then copy": (lambda b, n, out: out[:, :n].copy_(joined(b, n)), "a cat copies everything once more"),
        "token by token": (token_by_token, "but 4 copies too many (5, the budget is 1, one a block)"),
        "cloned first": (clone_first, "the values are right, but 1 copies too many"),
        "the cache cut": (cuts_the_cache, "blocks has changed: it is the cache"),
    },
)
def test_a_wrong_gather_into_a_row(answer, message):
    assert_refused("02.2", answer, message)


# 02.3


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
        return torch.zeros(shape)

    def part(self, batch, layer):
        return batch[layer].unbind(0)


class OneLayersRoom(BatchOfMyOwn):
    def part(self, batch, layer):
        return batch[0].unbind(0)


class OneTensorForBoth(BatchOfMyOwn):
    def part(self, batch, layer):
        return batch[layer, 0], batch[layer, 0]


class OneForKOneForV(BatchOfMyOwn):
    def allocate(self, *shape):
        return torch.stack([torch.zeros(shape)[:, 0], torch.zeros(shape)[:, 0]], dim=1)


class Uninitialised(BatchOfMyOwn):
    """Finite by luck here; what torch.empty holds is anybody's guess."""

    def allocate(self, *shape):
        return torch.empty(shape).mul_(0).nan_to_num_()


class Cloned(BatchOfMyOwn):
    """A copy gets the tokens, the batch stays empty."""

    def build_batched_past(self, seqs, longest):
        past = super().build_batched_past(seqs, longest)
        return [(torch.empty_like(k).zero_(), v) for k, v in past]


class LastLayerReturned(BatchOfMyOwn):
    def build_batched_past(self, seqs, longest):
        return super().build_batched_past(seqs, longest)[-1]


class OneTensorReturned(BatchOfMyOwn):
    def build_batched_past(self, seqs, longest):
        return torch.stack([torch.stack(pair) for pair in super().build_batched_past(seqs, longest)])


class TokensFirst(BatchOfMyOwn):
    def build_batched_past(self, seqs, longest):
        return [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in super().build_batched_past(seqs, longest)]


class FirstSequenceAlone(BatchOfMyOwn):
    def build_batched_past(self, seqs, longest):
        return [(k.expand(len(seqs), -1, -1, -1), v) for k, v in super().build_batched_past(seqs[:1], longest)]


class TwoAllocations(PreallocGather):
    def build_batched_past(self, seqs, longest):
        return super().build_batched_past(seqs, longest)


@wrong_answers(
    "02.3",
    {
        "room for one layer": (
            OneLayersRoom,
            "layer 0, prompt 0 (3 cached tokens) of a new batch: k: these are layer 1's keys",
        ),
        "K and V in one tensor": (OneTensorForBoth, "k: these are the values, not the keys"),
        "an allocation a layer": (TwoAllocations, "the gather makes 4 zeroed tensors a step; the budget is 1"),
        "one for K, one for V": (OneForKOneForV, "the gather makes 2 zeroed tensors a step; the budget is 1"),
        "torch.empty": (Uninitialised, "an empty tensor may hold NaN"),
        "a copy filled in": (Cloned, "k: 96 of 96 values differ, first at (0, 0, 0, 0): got 0, expected"),
        "one layer returned": (LastLayerReturned, "build_batched_past must return a list of 2 pairs, one a layer"),
        "one tensor returned": (OneTensorReturned, "build_batched_past must return a list of 2 pairs, one a layer"),
        "tokens before heads": (
            TokensFirst,
            "layer 0: k: shape (4, 69, 4, 8), expected (4, 4, 69, 8) = [B, H_kv, T, D]",
        ),
        "one row for all": (FirstSequenceAlone, "layer 0: v: shape (1, 4, 69, 8), expected (4, 4, 69, 8)"),
    },
)
def test_wrong_allocations(small, answer, message):
    assert_refused("02.3", answer, message, model=small)


def test_the_right_answers_that_wrong_ones_are_made_from(small):
    assert check("02.1", lambda *a: (useful(*a), padded(*a)))
    assert check("02.2", into)
    assert check("02.3", BatchOfMyOwn, model=small)


def test_the_copies_that_the_lesson_calls_the_same_are_the_same_on_the_page():
    """The riddle: fewer bytes, as many copies. A trace whose steps cross a block's edge would show more of them."""
    nb = nbformat.read(ROOT / "notebooks" / "02_prealloc_gather.ipynb", as_version=4)
    texts = [text for cell in nb.cells if cell.cell_type == "code" for text in shown(cell)]
    [in_trace] = [re.search(r"aten::copy_ +(\d+)", text)[1] for text in texts if text.startswith("name ")][:1]
    [counted] = [re.findall(r"'copy_': (\d+)", text) for text in texts if text.startswith("before:")]
    assert [in_trace, *counted] == ["64"] * 3


def shown(cell) -> list[str]:
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
