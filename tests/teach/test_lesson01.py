"""Lesson 01: wrong answers to its exercises are told what is wrong, and what they are made from is right."""

from __future__ import annotations

import ast

import nbformat
import pytest
import torch
from wrong_answers import assert_refused, wrong_answers

from roseinfer import teach
from roseinfer.generate import begin, decode_step
from roseinfer.paths import ROOT
from roseinfer.sequence import SamplingParams
from roseinfer.teach import check
from roseinfer.teach.exercises.lesson01 import naive_gather_ops
from stages import NaiveCat
from tools.contradictions import table, texts

# 01.1


def counts(num_layers, lengths, **changes):
    """The right counts, some of them changed: op -> what its count of one layer is, given lengths."""
    changed = {op: num_layers * count(lengths) for op, count in changes.items()}
    return naive_gather_ops(num_layers, lengths) | changed


def miscounted(**changes):
    return lambda num_layers, lengths: counts(num_layers, lengths, **changes)


def shorter(lengths):
    return sum(n < max(lengths) for n in lengths)


MIXED = "one block each, mixed, 12 layers, lengths [3, 9, 9, 1]: "
SEVERAL = "several blocks, 12 layers, lengths [65, 200]: "


@wrong_answers(
    "01.1",
    {
        "a list": (lambda num_layers, lengths: [1], "expected a dict with the keys"),
        "one op forgotten": (lambda num_layers, lengths: {"zeros": 1, "cat": 1}, "expected a dict with the keys"),
        "one layer": (lambda num_layers, lengths: counts(1, lengths), "zeros: 8: that is one layer"),
        "no pads": (miscounted(zeros=len), f"{MIXED}zeros: 48: a sequence shorter than the longest is padded"),
        "a pad for K alone": (miscounted(zeros=lambda n: len(n) + shorter(n)), "zeros: 72: a shorter sequence has two"),
        "everybody padded": (miscounted(zeros=lambda n: 3 * len(n)), "zeros: 288: the longest sequence is not padded"),
        "zeros for K and V": (miscounted(zeros=lambda n: 2 * (len(n) + shorter(n))), "v_seq is a zeros_like"),
        "zeros_like for K and V": (miscounted(zeros_like=lambda n: 2 * len(n)), "zeros_like: 192: only v_seq"),
        "copies by sequence": (miscounted(copy_=lambda n: 2 * len(n)), f"{SEVERAL}copy_: 48: a sequence is copied"),
        "copies of K alone": (miscounted(copy_=len), "copy_: 96: each block is copied for K and for V"),
        "full blocks alone": (miscounted(copy_=lambda n: 2 * sum(x // 64 for x in n)), "copy_: 0: the last block is"),
        "copies by token": (miscounted(copy_=lambda n: 2 * sum(n)), "copy_: 1,920: a block is copied at once"),
        "no cats of pads": (miscounted(cat=lambda n: 2), f"{MIXED}cat: 24: each shorter sequence is put together"),
        "pads of K catted": (miscounted(cat=lambda n: 2 + shorter(n)), "cat: 48: a shorter sequence has a cat for K"),
        "cats by sequence": (miscounted(cat=lambda n: 2 * len(n)), "cat: 192: one cat takes all sequences"),
    },
)  # fmt: skip
def test_wrong_counts_of_the_gather(answer, message):
    assert_refused("01.1", answer, message)


# 01.2


def joined(blocks, n):
    return torch.cat(blocks, dim=1)[:, :n]


def takes_blocks_off(blocks, n):
    parts = []
    while blocks:
        parts.append(blocks.pop(0))
    return joined(parts, n).unsqueeze(0)


def clears_the_rest(blocks, n):
    blocks[-1][:, (n - 1) % 64 + 1 :] = 0
    return joined(blocks, n).unsqueeze(0)


@wrong_answers(
    "01.2",
    {
        "unwritten slots too": (lambda blocks, n: joined(blocks, 999)[None], "the unwritten ones of the last block"),
        "no leading dimension": (joined, "shape (3, 5, 4), expected (1, 3, 5, 4)"),
        "heads and tokens swapped": (
            lambda blocks, n: joined(blocks, n).transpose(0, 1)[None],
            "values right after permute(0, 2, 1, 3)",
        ),
        "first block alone": (lambda blocks, n: blocks[0][:, :n][None], "64 tokens: the last block counts, full"),
        "behind one another as heads": (
            lambda blocks, n: torch.cat(blocks, dim=0)[:, :n][None],
            "num_tokens=65: you return 6 heads: blocks follow one another along their tokens, dimension 1",
        ),
        "last block first": (lambda b, n: joined(b[::-1], n)[None], "num_tokens=65: 780 of 780 values differ"),
        "the newest tokens": (lambda b, n: torch.cat(b, 1)[:, -n:][None], "num_tokens=5: 60 of 60 values differ"),
        "fp16": (lambda blocks, n: joined(blocks, n)[None].half(), "dtype float16, expected float32"),
        "blocks taken off the list": (takes_blocks_off, "blocks has changed: it is the cache"),
        "the cache written to": (clears_the_rest, "blocks has changed: it is the cache"),
    },
)
def test_a_wrong_gather(answer, message):
    assert_refused("01.2", answer, message)


# 01.3


class GatherOfMyOwn(NaiveCat):
    """Right and without zeros. The mistakes below change how a sequence's parts are put together."""

    def gather_sequence(self, seq, layer):
        filled = list(self.filled_blocks(seq, layer, seq.num_cached_tokens))
        keys = [k[:, : end - start] for start, end, (k, _) in filled]
        values = [v[:, : end - start] for start, end, (_, v) in filled]
        return self.put_together(keys), self.put_together(values)

    def put_together(self, parts):
        return torch.cat(parts, dim=1).unsqueeze(0)


class FirstBlockAlone(GatherOfMyOwn):
    def put_together(self, parts):
        return super().put_together(parts[:1])


class NoLeadingDimension(GatherOfMyOwn):
    def put_together(self, parts):
        return torch.cat(parts, dim=1)


class TokensBeforeHeads(GatherOfMyOwn):
    def put_together(self, parts):
        return super().put_together(parts).transpose(1, 2)


class KeysTwice(GatherOfMyOwn):
    def gather_sequence(self, seq, layer):
        keys, _ = super().gather_sequence(seq, layer)
        return keys, keys


class KeysAlone(GatherOfMyOwn):
    def gather_sequence(self, seq, layer):
        return super().gather_sequence(seq, layer)[0]


class WholeBlocks(NaiveCat):
    def gather_sequence(self, seq, layer):
        blocks = [block for *_, block in self.filled_blocks(seq, layer, seq.num_cached_tokens)]
        return tuple(torch.cat(parts, dim=1).unsqueeze(0) for parts in zip(*blocks, strict=True))


class FirstLayerAlone(GatherOfMyOwn):
    def gather_sequence(self, seq, layer):
        return super().gather_sequence(seq, 0)


class OnceForAll(GatherOfMyOwn):
    """Keeps what it gathered on the first step."""

    def gather_sequence(self, seq, layer):
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((seq.seq_id, layer), super().gather_sequence(seq, layer))


class StillZeros(NaiveCat):
    def gather_sequence(self, seq, layer):
        return super().gather_sequence(seq, layer)


class FullOfZeros(GatherOfMyOwn):
    def put_together(self, parts):
        shape = (1, parts[0].size(0), sum(part.size(1) for part in parts), parts[0].size(2))
        return torch.full(shape, 0.0).copy_(super().put_together(parts))


@wrong_answers(
    "01.3",
    {
        "first block alone": (
            FirstBlockAlone,
            "layer 0, prompt 1 (69 cached tokens) of a new batch: k: shape (1, 4, 64, 8), expected (1, 4, 69, 8)",
        ),
        "whole blocks": (WholeBlocks, "k: shape (1, 4, 64, 8), expected (1, 4, 3, 8)"),
        "no leading dimension": (NoLeadingDimension, "k: shape (4, 3, 8), expected (1, 4, 3, 8): values right, only"),
        "tokens before heads": (TokensBeforeHeads, "k: shape (1, 3, 4, 8), expected (1, 4, 3, 8): values right after"),
        "keys for values": (KeysTwice, "v: these are the keys, not the values"),
        "keys alone": (KeysAlone, "layer 0: expected a pair of tensors (k, v), got Tensor"),
        "first layer alone": (
            FirstLayerAlone,
            "layer 1, prompt 0 (3 cached tokens) of a new batch: k: these are layer 0's keys",
        ),
        "gathered once for all steps": (
            OnceForAll,
            "(4 cached tokens) after one step: k: shape (1, 4, 3, 8), expected",
        ),
        "still the zeros of stage 01": (StillZeros, "still makes 16 zeroed tensors a step; the budget is 0"),
        "torch.full": (FullOfZeros, "still makes 16 zeroed tensors a step; the budget is 0"),
        "an instance": ([NaiveCat], "expected a subclass of a stage"),
    },
)
def test_wrong_gathers_without_zeros(small, answer, message):
    assert_refused("01.3", answer, message, model=small)


def test_the_right_answers_that_wrong_ones_are_made_from(small):
    assert check("01.1", naive_gather_ops)
    assert check("01.2", lambda blocks, n: joined(blocks, n)[None])
    assert check("01.3", GatherOfMyOwn, model=small)


# What the lesson compares


@pytest.fixture(scope="module")
def cells():
    nb = nbformat.read(ROOT / "notebooks" / "01_naive_cat.ipynb", as_version=4)
    return [cell for cell in nb.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def recomputing(cells):
    """The lesson's own contenders without a cache, by name."""
    names: dict = {}
    for cell in cells:
        wanted = [node for node in ast.parse(cell.source).body if isinstance(node, ast.ImportFrom | ast.Import)]
        wanted += [node for node in ast.parse(cell.source).body if getattr(node, "name", "").startswith("Recompute")]
        exec(compile(ast.Module(wanted, []), "01_naive_cat", "exec"), names)
    return names


@pytest.mark.parametrize("name", ["Recompute", "RecomputeBatch"])
def test_recomputation_has_the_oracles_tokens_on_mixed_lengths(recomputing, small, name):
    proved = repr(teach.prove(recomputing[name], small, max_tokens=4))
    assert proved.count("equal") == 12 and "differs" not in proved


@pytest.mark.parametrize(("name", "forwards"), [("Recompute", 3), ("RecomputeBatch", 1), ("NaiveCat", 1)])
def test_the_contenders_differ_in_batching_alone_or_in_the_cache_alone(recomputing, small, name, forwards):
    """One forward for each text or one for all, with every token or with the new ones."""
    rows = []
    stage = recomputing[name](small, num_blocks=8)
    seqs = begin(stage, [[5] * 9] * 3, SamplingParams(max_tokens=4, ignore_eos=True))
    listening = small.h[0].register_forward_hook(lambda block, args, out: rows.append(args[0].size(0)))
    try:
        decode_step(stage, seqs)
    finally:
        listening.remove()
    assert len(rows) == forwards and sum(rows) == (3 if name == "NaiveCat" else 3 * 10)


def test_the_gather_on_the_page_makes_what_the_exercise_counts(cells):
    [shown] = [table(texts(cell)[0])[1] for cell in cells if "build_batched_past' AND" in cell.source]
    counted = {row["name"].removeprefix("aten::"): int(row["n"]) for row in shown}
    assert counted.pop("select")
    assert counted == naive_gather_ops(4, [40] * 8)
