"""Lesson 04: wrong answers are told what is wrong; the phases of a step; the picture of the pool."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import assert_refused, wrong_answers

from roseinfer import teach
from roseinfer.generate import begin, decode_step
from roseinfer.profiling import Trace
from roseinfer.profiling.phases import device_phases
from roseinfer.sequence import SamplingParams
from roseinfer.teach import check
from roseinfer.teach.measure.phase_shares import per_step
from stages import NaiveCat, VectorizedGather
from stages.s03_select_append import DenseStep

GATHER = "roseinfer.decode_step_sessions.build_batched_past"
FORWARD = "roseinfer.model.forward"
APPEND = "roseinfer.kv.append_token"


def padded(tables, longest, size, fill=0):
    width = -(-longest // size)
    return torch.tensor([(row + [fill] * width)[:width] for row in tables])


def right_indices(tables, longest, size, fill=0):
    tokens = torch.arange(longest)
    return padded(tables, longest, size, fill)[:, tokens // size], tokens % size


def slots_for_each_sequence(tables, longest, size):
    blocks, slots = right_indices(tables, longest, size)
    return blocks, slots.expand_as(blocks)


def quotient_and_rest_swapped(tables, longest, size):
    return right_indices(tables, longest, size)[0], torch.arange(longest) // size


def fractions(tables, longest, size):
    return right_indices(tables, longest, size)[0], torch.arange(longest) / size


def narrow(tables, longest, size):
    blocks, slots = right_indices(tables, longest, size)
    return blocks.int(), slots


def whole_blocks(tables, longest, size):
    return right_indices(tables, -(-longest // size) * size, size)


def blocks_repeated(tables, longest, size):
    blocks, slots = right_indices(tables, longest, size)
    return padded(tables, longest, size)[:, :1].expand_as(blocks), slots


@wrong_answers(
    "04.1",
    {
        "one tensor": (
            lambda tables, longest, size: right_indices(tables, longest, size)[0],
            "expected a pair (blocks, slots)",
        ),
        "lists": (lambda tables, longest, size: (tables, [0]), "expected two tensors, got list and list"),
        "the wrong way round": (
            lambda tables, longest, size: right_indices(tables, longest, size)[::-1],
            "the wrong way round",
        ),
        "slots by sequence": (
            slots_for_each_sequence,
            "slots has shape (3, 11), expected (11,): the slot of token t is the same",
        ),
        "quotient for rest": (quotient_and_rest_swapped, "slots holds t // block_size"),
        "fractions": (fractions, "slots is floating point"),
        "int32": (narrow, "blocks: dtype int32, expected int64"),
        "minus one where no block is": (
            lambda tables, longest, size: right_indices(tables, longest, size, fill=-1),
            "read from the end of the pool",
        ),
        "one where no block is": (
            lambda tables, longest, size: right_indices(tables, longest, size, fill=1),
            "first at (1, 8): got 1",
        ),
        "whole blocks": (whole_blocks, "blocks: shape (3, 12), expected (3, 11)"),
        "first block alone": (blocks_repeated, "first at (0, 4): got 4, expected 1"),
    },
)
def test_wrong_indices(answer, message):
    assert_refused("04.1", answer, message)


def slots_at(offset, flat=lambda block, slot, size: block * size + slot):
    def answer(tables, num_cached, size):
        places = [divmod(n + offset, size) for n in num_cached]
        return torch.tensor([flat(row[i], slot, size) for row, (i, slot) in zip(tables, places, strict=True)])

    return answer


def in_last_block(tables, num_cached, size):
    return torch.tensor([row[-1] * size + n % size for row, n in zip(tables, num_cached, strict=True)])


@wrong_answers(
    "04.2",
    {
        "the newest cached token": (
            slots_at(-1),
            "sequence 0 with blocks [9, 1], 3 cached, block size 4: 38, expected 39: there lies token 2",
        ),
        "the token behind": (
            slots_at(1),
            "sequence 0 with blocks [9, 1], 3 cached, block size 4: 4, expected 39: that leaves the slot of token 3",
        ),
        "last block of the table": (
            in_last_block,
            "sequence 0 with blocks [9, 1], 3 cached, block size 4: 7, expected 39: that is in the last",
        ),
        "the token's number": (
            lambda tables, num_cached, size: torch.tensor(num_cached),
            "its block has to be looked up in the table",
        ),
        "block + slot": (slots_at(0, lambda block, slot, size: block + slot), "a block is block_size slots long"),
        "block alone": (slots_at(0, lambda block, slot, size: block), "that is the block alone"),
        "a list": (lambda tables, num_cached, size: [19, 20, 29], "expected a tensor, got list"),
        "a column": (lambda tables, n, size: slots_at(0)(tables, n, size)[:, None], "shape (3, 1), expected (3,)"),
        "fp32": (lambda tables, n, size: slots_at(0)(tables, n, size).float(), "dtype float32, expected int64"),
        "int32": (lambda tables, n, size: slots_at(0)(tables, n, size).int(), "dtype int32, expected int64"),
    },
)
def test_wrong_slots(answer, message):
    assert_refused("04.2", answer, message)


class OneMore(VectorizedGather):
    """Gathers a column more. What a step then does is up to the subclass."""

    step_class: type[DenseStep]

    def build_batched_past(self, seqs, longest):
        return super().build_batched_past(seqs, longest + 1)

    def build(self, seqs):
        step = super().build(seqs)
        return self.step_class(step.past, step.mask)


class Attend(DenseStep):
    def attend(self, q, keys, values):
        self.presents.append((keys, values))
        out = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=self.mask, enable_gqa=True)
        return out.squeeze(2)


class Forgotten(Attend):
    def __call__(self, layer, q, k, v):
        return self.attend(q, *self.past[layer])


class OwnColumn(Attend):
    """Writes behind each sequence's own tokens; the mask lets a sequence read its own and the last column."""

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


class CopiedAgain(Attend):
    def __call__(self, layer, q, k, v):
        keys, values = (past.contiguous() for past in self.past[layer])
        keys[:, :, -1], values[:, :, -1] = k, v
        return self.attend(q, keys, values)


class Forgets(OneMore):
    step_class = Forgotten


class WritesOwnColumn(OneMore):
    step_class = OwnColumn


class CopiesAgain(OneMore):
    step_class = CopiedAgain


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


class StillCats(VectorizedGather):
    def build(self, seqs):
        return super().build(seqs)


@wrong_answers(
    "04.3",
    {
        "new token forgotten": (Forgets, "is the new token in its column before attention reads?"),
        "new token in its own column": (WritesOwnColumn, "equal lengths are right, mixed ones not: sequence"),
        "new token over the block before": (
            OverwritesAtEdge,
            "wrong where the last column starts a new one (block size 4): sequence",
        ),
        "still the cat of stage 03": (StillCats, "the step makes 4 cats; the budget is 0"),
        "gathered, then copied": (CopiesAgain, "Is what was gathered copied once more?"),
        "column indexed again": (LastBlockAgain, "Is what was gathered copied once more?"),
        "an instance": ([VectorizedGather], "expected a subclass of a stage"),
    },
)
def test_a_wrong_stage(small, answer, message):
    assert_refused("04.3", answer, message, model=small)


def test_a_stage_without_a_cat(small):
    class WithoutCat(OneMore):
        step_class = LastColumn

    assert check("04.3", WithoutCat, model=small)


# phase_shares


def test_phases_and_the_rest_make_the_step(small):
    table = teach.phase_shares(VectorizedGather, small, (1, 3), prompt_len=5, steps=2)
    calls = 2 * small.config.num_layers
    assert repr(table).splitlines()[0] == "s04_vectorized_gather: one decode step by phase"
    assert table.df[["batch", "aten::index", "aten::index_put_"]].to_numpy().tolist() == [
        [1, calls, calls],
        [3, calls, calls],
    ]
    parts = table.df[["gather ms", "forward ms", "append ms", "unlabelled ms"]]
    assert (parts > 0).all(axis=None)
    assert parts.sum(axis=1).tolist() == pytest.approx(table.df["step ms"].tolist())
    labelled = parts.drop(columns="unlabelled ms").sum(axis=1)
    assert (table.df["forward ms"] / labelled).tolist() == pytest.approx(table.df["forward share"].tolist())
    assert "forward ms" not in repr(table) and "forward ms" in table.to_html()


def test_phases_of_a_stage_that_copies(small):
    table = teach.phase_shares(NaiveCat, small, [2], prompt_len=3, steps=1)
    assert table.df.loc[0, ["aten::index", "aten::index_put_"]].tolist() == [0, 0]


def event(name, start, dur, cat, tid=1):
    return {"ph": "X", "name": name, "ts": start, "dur": dur, "cat": cat, "tid": tid, "pid": 0}


@pytest.fixture
def gpu_trace():
    """Two steps of 100 us on the host. On the device: gather 5, forward 40, append 4, 1 without a label."""
    events = []
    for step, start in enumerate((1000, 2000)):
        events += [
            event(f"ProfilerStep#{step}", start, 100, "user_annotation"),
            event(GATHER, start + 5, 20, "user_annotation"),
            event(FORWARD, start + 30, 30, "user_annotation"),
            event(APPEND, start + 62, 18, "user_annotation"),
            event(GATHER, start + 10, 12, "gpu_user_annotation", tid=7),
            event("gather_kernel", start + 10, 2, "kernel", tid=7),
            event("gather_kernel", start + 19, 3, "kernel", tid=7),
            event(FORWARD, start + 35, 40, "gpu_user_annotation", tid=7),
            event("gemm", start + 35, 40, "kernel", tid=7),
            event("copy elsewhere", start + 40, 1, "gpu_memcpy", tid=9),
            event(APPEND, start + 80, 10, "gpu_user_annotation", tid=7),
            event("copy", start + 80, 4, "gpu_memcpy", tid=7),
        ]
    return Trace({"traceEvents": events, "roseinfer": {"steps": 2}})


def test_device_time_of_a_gpu_trace(gpu_trace):
    device = per_step(device_phases(gpu_trace))
    assert [device[f"{part} ms"] for part in ("gather", "forward", "append", "unlabelled", "step")] == pytest.approx(
        [0.005, 0.040, 0.004, 0.001, 0.050]
    )
    assert device["forward share"] == pytest.approx(40 / 49)


# draw_pool_gather


def test_the_picture_says_where_padding_is_read(small):
    stage = VectorizedGather(small, num_blocks=8, block_size=4)
    seqs = begin(stage, [[5] * 6, [6] * 3, [7] * 5], SamplingParams(max_tokens=9, ignore_eos=True))
    for _ in range(5):
        decode_step(stage, seqs)
    picture = teach.draw_pool_gather(stage, seqs)
    text = repr(picture)
    assert "a pool of 8 blocks with 4 slots holds 3 sequences of [11, 8, 10] tokens" in text
    assert "sequence 1: [2, 2, 2, 2, 5, 5, 5, 5, 0, 0, 0]" in text
    assert "29 tokens of content and 4 of padding, 3 of it read from block 0." in text
    assert picture.png.startswith(b"\x89PNG")
