"""The first post's counts, exactly: GPT-2 small's shape, a batch of 8, one decode step."""

from __future__ import annotations

import csv
from collections import Counter

import pytest
import torch

from roseinfer.generate import begin, decode_step
from roseinfer.models.load import TINY
from roseinfer.profiling import count_ops
from roseinfer.profiling.slicing import slice_dispatches, torch_version
from roseinfer.sequence import SamplingParams
from stages import NaiveCat, PreallocGather, SelectAppend

GATHER = "roseinfer.decode_step_sessions.build_batched_past"
APPEND = "roseinfer.kv.append_token"
LAYERS, BATCH, HEADS, HEAD_DIM, BLOCK = 12, 8, 12, 64, 64
EACH = LAYERS * BATCH * 2  # (layer, sequence), K and V
ALL = slice(None)
POST_TORCH = (2, 6)


def post_counts(table: str) -> dict[str, int]:
    with (TINY.parent / "posts" / "000" / f"{table}.csv").open() as file:
        return {row["name"]: int(row["n"]) for row in csv.DictReader(file)}


def step_counts(stage_class, model, span: str, lengths: list[int]) -> Counter[str]:
    stage = stage_class(model, num_blocks=BATCH)
    seqs = begin(stage, [[7] * n for n in lengths], SamplingParams())
    return count_ops(lambda: decode_step(stage, seqs), span=span)


def gather_slices(lengths: list[int], version=None) -> int:
    """out[:, 0:n, :] = block[:, 0:n, :] for every (layer, sequence), K and V."""
    longest = max(lengths)
    one = [
        slice_dispatches((ALL, slice(0, n), ALL), (HEADS, longest, HEAD_DIM), version)
        + slice_dispatches((ALL, slice(0, n), ALL), (HEADS, BLOCK, HEAD_DIM), version)
        for n in lengths
    ]
    return LAYERS * 2 * sum(one)


def append_slices(select_first: bool, longest: int, version=None) -> int:
    write = slice_dispatches((ALL, 5, ALL), (HEADS, BLOCK, HEAD_DIM), version)
    if select_first:
        return EACH * write
    batch = (BATCH, HEADS, longest + 1, HEAD_DIM)
    cut = slice_dispatches((slice(1, 2), ALL, slice(longest, longest + 1), ALL), batch, version)
    index = slice_dispatches((0, ALL, 0, ALL), (1, HEADS, 1, HEAD_DIM), version)
    return EACH * (cut + index + write)


def test_naive_gather(gpt2_shape):
    ops = step_counts(NaiveCat, gpt2_shape, GATHER, [4] * BATCH)
    assert {op: ops[f"aten::{op}"] for op in ("cat", "zeros", "zeros_like", "copy_")} == {
        "cat": 24, "zeros": 96, "zeros_like": 96, "copy_": 192,
    }  # fmt: skip
    mixed = step_counts(NaiveCat, gpt2_shape, GATHER, [4] * 7 + [9])
    shorter = LAYERS * 7 * 2  # each (layer, shorter sequence) is padded, K and V
    assert mixed["aten::cat"] == 24 + shorter and mixed["aten::zeros"] == 96 + shorter


@pytest.mark.parametrize("lengths", [[4] * 8, [4] * 7 + [9], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_preallocated_gather(gpt2_shape, lengths):
    ops = step_counts(PreallocGather, gpt2_shape, GATHER, lengths)
    assert {op: ops[f"aten::{op}"] for op in ("cat", "zeros", "zeros_like", "copy_", "select")} == {
        "cat": 0, "zeros": 12, "zeros_like": 12, "copy_": 192, "select": 192,
    }  # fmt: skip
    assert ops["aten::slice"] == gather_slices(lengths)


def test_append(gpt2_shape):
    before = step_counts(PreallocGather, gpt2_shape, APPEND, [4] * BATCH)
    after = step_counts(SelectAppend, gpt2_shape, APPEND, [4] * BATCH)
    assert (before["aten::select"], before["aten::copy_"]) == (576, 192)
    assert (after["aten::select"], after["aten::copy_"]) == (408, 192)
    assert before["aten::slice"] == append_slices(False, 4) and after["aten::slice"] == append_slices(True, 4)
    if torch_version() >= (2, 9):
        assert (before["aten::slice"], after["aten::slice"]) == (384, 0)
    # every view is one as_strided
    assert before["aten::as_strided"] == before["aten::slice"] + 576
    assert after["aten::as_strided"] == after["aten::slice"] + 408


def test_the_posts_tables_follow_from_a_batch_of_8_and_its_torch():
    """Not from the 16 requests that the post's text multiplies with."""
    before, after, gather = (post_counts(t) for t in ("append_before", "append_after", "gather_after"))
    assert append_slices(False, 30, POST_TORCH) == before["aten::slice"] == 1536
    assert append_slices(True, 30, POST_TORCH) == after["aten::slice"] == 384
    assert before["aten::as_strided"] == before["aten::slice"] + before["aten::select"]
    one_longest = [4] * 7 + [9]
    assert gather_slices(one_longest, POST_TORCH) == gather["aten::slice"] == 1128
    assert gather_slices([4] * 8, POST_TORCH) == 960
    assert gather["aten::copy_"] == before["aten::copy_"] == EACH == 192


@pytest.mark.parametrize(
    ("index", "shape", "old", "new"),
    [
        ((ALL, ALL), (3, 4), 2, 0),
        ((slice(0, 3), ALL), (3, 4), 1, 0),
        ((slice(None, 3),), (3, 4), 0, 0),
        ((slice(1, 3), 2), (3, 4), 1, 1),
        ((0, slice(0, 2)), (3, 4), 1, 1),
    ],
)
def test_the_slice_rule(index, shape, old, new):
    assert slice_dispatches(index, shape, (2, 8)) == old
    assert slice_dispatches(index, shape, (2, 9)) == new
    x = torch.zeros(shape)
    assert count_ops(lambda: x[index])["aten::slice"] == slice_dispatches(index, shape)


@pytest.mark.parametrize(
    ("index", "message"), [((slice(0, 4, 2),), "step 1"), ((0, 0, 0), "3 parts"), ((None,), "None")]
)
def test_the_slice_rule_says_what_it_does_not_cover(index, message):
    with pytest.raises(ValueError, match=message):
        slice_dispatches(index, (3, 4))
