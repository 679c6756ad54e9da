"""ready_batch: the stage holds every sequence, with the tokens that the steps have made."""

from __future__ import annotations

from oracles import small_model

from course import teach
from stages import VectorizedGather


def test_a_batch_is_prefilled_and_decoded():
    sizes = {"max_tokens": 12, "num_blocks": 8, "block_size": 4}
    stage, seqs = teach.ready_batch(VectorizedGather, small_model(), [6, 3, 5], steps=2, **sizes)
    assert [seq.num_cached_tokens for seq in seqs] == [8, 5, 7]
    assert [len(seq.output_ids) for seq in seqs] == [3, 3, 3]
    assert stage.num_free_blocks == 8 - (2 + 2 + 2) and all(map(stage.holds, seqs))
    stage, seqs = teach.ready_batch(VectorizedGather, small_model(), [1] * 70, max_tokens=3)
    assert len(seqs) == stage.max_num_seqs == 70
