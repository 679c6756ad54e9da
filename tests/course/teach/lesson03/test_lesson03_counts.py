"""Lesson 03: what the riddles count by rule is what the stages dispatch on this torch."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from course import teach
from course.posts.data import post_table
from course.teach.exercises.stage_checks import GATHER_SPAN
from course.teach.lesson03.post_counts import append_ops, gather_slices
from roseinfer.generate import decode_step
from roseinfer.profiling import count_ops
from stages import PreallocGather


def test_one_batch_of_the_post_explains_every_column():
    rows = teach.append_counts([4, 8, 16]).df
    assert list(rows["is the post's"]) == [False, True, False]
    counted = post_table("000", "append_before").set_index("name")["n"]
    assert append_ops(8) == {name: counted[name] for name in append_ops(8)}


def test_slices_of_an_index_are_counted_here_and_before():
    expressions = {"x[:, 1:2]": np.s_[:, 1:2], "x[0:3]": np.s_[0:3]}
    rows = teach.slice_counts(torch.zeros(3, 4), expressions).df
    assert list(rows["expression"]) == ["x[:, 1:2]", "x[0:3]"]
    assert list(rows["slices, before torch 2.9"]) == [2, 0]
    assert list(rows["slices, this torch"]) == [
        count_ops(lambda i=i: torch.zeros(3, 4)[i])["aten::slice"] for i in expressions.values()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[4] * 8, [4] * 7 + [5], [1, 2, 3]])
def test_slices_of_the_gather_are_what_the_stage_dispatches(gpt2_shape, lengths):
    batch = teach.ready_batch(PreallocGather, gpt2_shape, lengths)
    assert count_ops(lambda: decode_step(*batch), span=GATHER_SPAN)["aten::slice"] == gather_slices(lengths)


def test_the_batches_that_explain_the_posts_slices():
    table = teach.gather_counts({"equal": [4] * 8, "one longer": [4] * 7 + [5]})
    assert list(table.df["is the post's"]) == [False, True]
    assert not re.search("on this torch", repr(table))  # depends on the version, so it is not compared
