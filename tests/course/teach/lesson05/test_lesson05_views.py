"""Lesson 05: its picture says exact facts."""

from __future__ import annotations

from course.teach import draw_block_walk
from roseinfer.generate import begin, decode_step
from roseinfer.sequence import SamplingParams
from stages import BlockTable


def test_the_picture_tells_each_walk(small):
    stage = BlockTable(small, num_blocks=6, block_size=4)
    seqs = begin(stage, [[3] * 6, [4] * 3], SamplingParams(max_tokens=8, ignore_eos=True))
    for _ in range(3):
        decode_step(stage, seqs)
    assert repr(draw_block_walk(stage, seqs)) == (
        "Left, gathered: 2 x 9 tokens, 3 of them padding. Right, a walk over blocks of 4 tokens, nothing gathered: "
        "sequence 0: [0, 1, 4]; sequence 1: [2, 3]."
    )
