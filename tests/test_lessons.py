"""Exercises of lessons 00 to 03: the reference solutions pass, plausible wrong answers are told what is wrong."""

from __future__ import annotations

import pytest
import torch

from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.teach import check
from stages import NaiveCat, PreallocGather, SelectAppend


class LongestPosition(SelectAppend):
    def positions(self, seqs):
        return [max(seq.num_cached_tokens for seq in seqs)] * len(seqs)


# 00


def one_of_two(c, n, width):
    return c.num_layers * c.num_kv_heads * c.head_dim * n * width


def query_heads(c, n, width):
    return 2 * c.num_layers * c.num_heads * c.head_dim * n * width


def values_not_bytes(c, n, width):
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * n


def generate_but_keep_blocks(stage, prompt, max_tokens, free=False):
    seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens))
    seq.append(int(stage.prefill(seq).argmax()))
    while len(seq.output_ids) < max_tokens:
        seq.append(int(stage.decode([seq])[0].argmax()))
    if free:
        stage.free(seq)
    return seq


def one_too_many(stage, prompt, max_tokens):
    return generate_but_keep_blocks(stage, prompt, max_tokens + 1, free=True).output_ids


def without_append(stage, prompt, max_tokens):
    seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens))
    stage.prefill(seq)
    stage.decode([seq])


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("00.1", one_of_two, "K and V are both kept"),
        ("00.1", query_heads, "query heads are not cached"),
        ("00.1", values_not_bytes, "those are values, not bytes"),
        ("00.1", lambda c, n, width: one_of_two(c, n, width) * 2 // c.num_layers, "that is one layer"),
        ("00.1", lambda c, n, width: 7, "count one token of one layer first"),
        ("00.2", lambda p, n: (p + n - 1, sum(p + i for i in range(n))), "the wrong way round"),
        ("00.2", lambda p, n: (sum(p + i for i in range(n)), p + n), "the last token is made, but never computed"),
        ("00.2", lambda p, n: p + n, "expected a pair"),
        ("00.2", lambda p, n: (p * n, p + n - 1), "expected"),
        ("01.1", lambda num_layers, lengths: [1], "expected a dict with the keys"),
        (
            "01.1",
            lambda num_layers, lengths: {
                "zeros": num_layers * len(lengths), "zeros_like": num_layers * len(lengths),
                "copy_": 2 * num_layers * len(lengths), "cat": 2 * num_layers,
            },
            "one block each, mixed, 12 layers, lengths [3, 9, 9, 1]: zeros is 96, you have 48",
        ),
        ("01.2", lambda blocks, n: torch.cat(blocks, dim=1).unsqueeze(0), "the unwritten ones of the last block too"),
        ("01.2", lambda blocks, n: torch.cat(blocks, dim=1)[:, :n], "shape (3, 5, 4), expected (1, 3, 5, 4)"),
        (
            "01.2",
            lambda blocks, n: torch.cat(blocks, dim=1)[:, :n].transpose(0, 1).unsqueeze(0),
            "values right after permute(0, 2, 1, 3)",
        ),
        ("01.2", lambda blocks, n: blocks[0][:, :n].unsqueeze(0), "shape (1, 3, 64, 4), expected (1, 3, 65, 4)"),
        ("02.1", lambda c, lengths, w: (1, 2), "useful is"),
        (
            "02.1",
            lambda c, lengths, w: (
                c.num_layers * c.num_kv_heads * c.head_dim * w * sum(lengths),
                2 * c.num_layers * c.num_kv_heads * c.head_dim * w * len(lengths) * max(lengths),
            ),
            "K and V are both gathered",
        ),
        ("02.2", lambda blocks, n, out: torch.cat(blocks, dim=1)[:, :n], "out was not changed"),
        ("02.2", lambda blocks, n, out: out.zero_(), "out[:, 5:] was overwritten"),
        (
            "02.2",
            lambda blocks, n, out: out[:, :n].copy_(torch.cat(blocks, dim=1)[:, :n]),
            "a cat copies everything once more",
        ),
        ("02.2", lambda blocks, n, out: out[:, : n - 1].copy_(blocks[0][:, : n - 1]), "values differ"),
        ("03.1", lambda index, shape, free: len(index), "you have 2"),
        ("03.1", lambda index, shape, free: sum(isinstance(p, slice) for p in index), "=True: 0, you have 1"),
        (
            "03.1",
            lambda index, shape, free: sum(isinstance(p, slice) and not (free and p == slice(None)) for p in index),
            "index [0:2, :] of shape (2, 3), colon_is_free=False: 1, you have 2",
        ),
        ("03.2", [4] * 16, "16 sequences make 384 copies a step; the post's table has 192"),
        ("03.2", [4] * 8, "these lengths make 960 slices, the post has 1128; 8 of them are longest"),
        ("03.2", [], "the batch is empty"),
        ("03.2", [4.0] * 8, "expected a list of lengths"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_told_what_is_wrong(exercise, answer, message):
    verdict = check(exercise, answer)
    assert not verdict and message in repr(verdict)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda s, p, n: generate_but_keep_blocks(s, p, n).output_ids, "1 blocks were not given back"),
        (
            lambda s, p, n: generate_but_keep_blocks(s, p, n, free=True).token_ids,
            "the prompt is part of what you return",
        ),
        (one_too_many, "max_tokens=1, but 2 tokens came back"),
        (without_append, "exactly one new token"),
    ],
)
def test_a_wrong_decode_loop(small, answer, message):
    assert message in repr(check("00.3", answer, stage_class=NaiveCat, model=small))


class OnlyLastBlock(NaiveCat):
    def gather_sequence(self, seq, layer):
        *_, (start, end, (k_block, v_block)) = self.filled_blocks(seq, layer, seq.num_cached_tokens)
        rest = torch.ones(1, self.config.num_kv_heads, start, self.config.head_dim)
        parts = [k_block[None, :, : end - start], v_block[None, :, : end - start]]
        return tuple(torch.cat([rest, part], dim=2) for part in parts)


class StillZeros(NaiveCat):
    def gather_sequence(self, seq, layer):
        return super().gather_sequence(seq, layer)


class TwoAllocations(PreallocGather):
    def build_batched_past(self, seqs, longest):
        return super().build_batched_past(seqs, longest)


class Uninitialised(PreallocGather):
    """Finite by luck here; what torch.empty holds is anybody's guess."""

    def build_batched_past(self, seqs, longest):
        c = self.config
        past = []
        for layer in range(c.num_layers):
            batch = torch.empty(2, len(seqs), c.num_kv_heads, longest, c.head_dim).mul_(0).nan_to_num_()
            for i, seq in enumerate(seqs):
                self.gather_sequence_into(seq, layer, batch[0, i], batch[1, i])
            past.append((batch[0], batch[1]))
        return past


class SelectForEach(SelectAppend):
    def append(self, seqs, step):
        for layer, (k_batch, v_batch) in enumerate(step.presents):
            new = k_batch.size(2) - 1
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k_batch[i, :, new], v_batch[i, :, new])


class LostValues(SelectAppend):
    def append(self, seqs, step):
        for layer, (k_batch, _) in enumerate(step.presents):
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k_batch[i, :, -1], k_batch[i, :, -1])


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        ("01.3", OnlyLastBlock, "mixed lengths): token"),
        ("01.3", StillZeros, "zeroed tensors a step; the budget is 0"),
        ("01.3", [NaiveCat], "expected a subclass of a stage"),
        ("02.3", TwoAllocations, "the budget is 1"),
        ("02.3", Uninitialised, "an empty tensor may hold NaN"),
        ("03.4", SelectForEach, "the budget is 32"),
        ("03.4", LostValues, "mixed lengths): token"),
    ],
)
def test_a_wrong_stage_is_told_what_is_wrong(small, exercise, answer, message):
    verdict = check(exercise, answer, model=small)
    assert not verdict and message in repr(verdict)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1, 2], [3, 4]], "all prompts have 2 tokens"),
        ([[1, 2, 3]], "one sequence alone"),
        ([1, 2], "expected a list of prompts"),
    ],
)
def test_prompts_that_cannot_reveal_the_bug(small, prompts, message):
    assert message in repr(check("03.3", lambda: prompts, buggy_stage=LongestPosition, model=small))


def test_prompts_that_reveal_nothing_because_there_is_no_bug(small):
    prompts = [[1, 2, 3, 4, 5, 6], [7]]
    verdict = check("03.3", lambda: prompts, buggy_stage=SelectAppend, model=small)
    assert "the tokens happen to be equal" in repr(verdict)
    assert check("03.3", lambda: prompts, buggy_stage=LongestPosition, model=small)
