"""Lesson 05: its walk and picture say exact facts."""

from __future__ import annotations

from course.teach import draw_block_walk, walk_blocks
from roseinfer.generate import begin, decode_step
from roseinfer.sequence import SamplingParams
from stages import BlockTable


def test_the_walk_shows_the_table_that_attention_was_given(small):
    stage = BlockTable(small, num_blocks=6, block_size=4, max_num_seqs=2)
    walk = walk_blocks(stage, [[5] * 6, [6] * 2, [7] * 5], [4, 3, 3])
    assert repr(walk) == "7 frames: 10 tokens; blocks: 6, fewest free 1, used again 1, free at the end 6"
    first, last = walk.texts(2), walk.texts(6)
    assert "The block table as attention gets it, [2, 2]; hatched: never used" in first
    assert any("waiting: 2" in text for text in first) and any("finished: 0, 1, 2" in text for text in last)
    assert "block 1, slot 2" in first  # seq 0's token at position 6
    assert "2 · seq 1: 3/4" in first


def test_the_picture_tells_each_walk(small):
    stage = BlockTable(small, num_blocks=6, block_size=4)
    seqs = begin(stage, [[3] * 6, [4] * 3], SamplingParams(max_tokens=8, ignore_eos=True))
    for _ in range(3):
        decode_step(stage, seqs)
    assert repr(draw_block_walk(stage, seqs)) == (
        "Left, gathered: 2 x 9 tokens, 3 of them padding. Right, a walk over blocks of 4 tokens, nothing gathered: "
        "sequence 0: [0, 1, 4]; sequence 1: [2, 3]."
    )
