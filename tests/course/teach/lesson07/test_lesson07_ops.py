"""Lesson 07: operations and launches of one step's attention are counted from a trace."""

from __future__ import annotations

import pytest

from course.teach import attention_launches, attention_ops
from stages import BlockTableCache, TritonPaged


def count(model, lengths):
    return attention_ops(BlockTableCache, model, lengths).df["n"].sum()


def test_operations_follow_the_longest_sequence(small):
    few, more, most = (count(small, [4, longest]) for longest in (4, 70, 128))
    assert more - few == most - more > 10
    assert count(small, [4, 4, 4, 70]) == more


@pytest.mark.needs_triton
def test_a_launch_per_layer(small):
    assert [attention_launches(TritonPaged, small, [4, n]) for n in (4, 70)] == 2 * [small.config.num_layers]
