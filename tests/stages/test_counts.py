"""The first post's counts, exactly: GPT-2 small's layers and heads, a batch of 8, one decode step."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from course.posts.data import post_table
from course.posts.post000.counts import DecodeBatch
from roseinfer.generate import begin, decode_step
from roseinfer.profiling import count_ops
from roseinfer.profiling.slice_rule import slice_dispatches, torch_version
from roseinfer.sequence import SamplingParams
from stages import NaiveCat, PreallocGather, SelectAppend

pytestmark = pytest.mark.slow


GATHER = "roseinfer.decode_step_sessions.build_batched_past"
APPEND = "roseinfer.kv.append_token"
LAYERS, BATCH, HEADS, HEAD_DIM, BLOCK = 12, 8, 12, 64, 64
ALL = slice(None)
POST_TORCH = (2, 6)


def post_counts(table: str) -> dict[str, int]:
    return dict(post_table("000", table)[["name", "n"]].itertuples(index=False))


def step_counts(stage_class, model, span: str, lengths: list[int]) -> Counter[str]:
    stage = stage_class(model, num_blocks=2 * BATCH)
    seqs = begin(stage, [[7] * n for n in lengths], SamplingParams())
    return count_ops(lambda: decode_step(stage, seqs), span=span)


def batch(lengths: list[int], version=None, on_cpu: bool = True) -> DecodeBatch:
    return DecodeBatch(LAYERS, HEADS, HEAD_DIM, BLOCK, lengths, on_cpu, version)


def some(ops: dict[str, int]) -> dict[str, int]:
    """Those that are started at all."""
    return {op: n for op, n in ops.items() if n}


def test_naive_gather(gpt2_layers):
    ops = step_counts(NaiveCat, gpt2_layers, GATHER, [4] * BATCH)
    each = {"cat": 24, "zeros": 96, "zeros_like": 96, "copy_": 192}
    assert {op: ops[f"aten::{op}"] for op in each} == each
    mixed = step_counts(NaiveCat, gpt2_layers, GATHER, [4] * 7 + [9])
    shorter = LAYERS * 7 * 2  # each (layer, shorter sequence) is padded, K and V
    assert mixed["aten::cat"] == 24 + shorter and mixed["aten::zeros"] == 96 + shorter


@pytest.mark.parametrize(
    "lengths",
    [[4] * 8, [4] * 7 + [9], [1, 2, 3, 4, 5, 6, 7, 8], [64] * 8, [3] * 7 + [70], [6] * 8],
    ids=["equal", "one longest", "all different", "full blocks", "two blocks", "large"],
)
def test_preallocated_gather(gpt2_layers, lengths):
    ops = step_counts(PreallocGather, gpt2_layers, GATHER, lengths)
    rule = batch(lengths).gather_ops()
    assert {op: ops[op] for op in rule} == rule
    assert set(ops) - set(rule) <= {"aten::alias"}  # of a full block, x[:, 0:64, :] is x itself
    each = {"cat": 0, "zeros": 12, "zeros_like": 12, "select": 192}
    assert {op: ops[f"aten::{op}"] for op in each} == each
    if max(lengths) <= BLOCK:
        assert ops["aten::copy_"] == 192


def test_append(gpt2_layers):
    before = step_counts(PreallocGather, gpt2_layers, APPEND, [4] * BATCH)
    after = step_counts(SelectAppend, gpt2_layers, APPEND, [4] * BATCH)
    assert (before["aten::select"], before["aten::copy_"]) == (576, 192)
    assert (after["aten::select"], after["aten::copy_"]) == (408, 192)
    assert before == some(batch([4] * BATCH).append_ops(select_first=False))
    assert after == some(batch([4] * BATCH).append_ops(select_first=True))
    if torch_version() >= (2, 9):
        assert (before["aten::slice"], after["aten::slice"]) == (384, 0)


def test_the_posts_tables_follow_from_a_batch_of_8_and_its_torch():
    """Not from the 16 requests that the post's text multiplies with. All of each table, to the last op."""
    theirs = batch([4] * 7 + [9], POST_TORCH, on_cpu=False)
    assert theirs.append_ops(select_first=False) == post_counts("append_before")
    assert theirs.append_ops(select_first=True) == post_counts("append_after")
    assert theirs.gather_ops() == post_counts("gather_after")
    assert batch([4] * 8, POST_TORCH).gather_ops()["aten::slice"] == 960


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
