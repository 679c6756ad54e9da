"""Stage 10 beyond the contract: rows of one table, no append, inputs that stay where they are, prompts in pieces."""

from __future__ import annotations

import pytest
import torch
from checked_stages import ready
from oracles import prompts_of

from roseinfer.generate import decode_step
from roseinfer.profiling import bytes_copied, count_ops, stage_ops, trace_once
from roseinfer.sequence import Sequence
from stages import OneTable


@pytest.mark.parametrize("lengths", [[5], [16] * 6, [1, 70, 15, 64]], ids=str)
def test_a_step_writes_a_row_a_sequence_whatever_the_layers(small, lengths):
    stage, seqs = ready(OneTable, small, lengths, 16)
    for _ in range(3):
        before = stage.rows_built
        decode_step(stage, seqs)
        assert stage.rows_built - before == len(seqs)
    assert stage.tables.num_tables == 1


def test_a_decode_has_no_append_and_makes_no_tensor_from_a_list(small):
    stage, seqs = ready(OneTable, small, [5, 30, 16], 16)
    assert not count_ops(lambda: decode_step(stage, seqs), span="roseinfer.kv.append_token")
    ops = stage_ops(trace_once(lambda: stage.decode(seqs)))
    started = ("lift_fresh", "index_put_", "index", "stack", "cat", "copy_", "zeros", "_local_scalar_dense")
    assert {op: ops[f"aten::{op}"] for op in started} == dict.fromkeys(started, 0)
    for seq in seqs:
        seq.append(1)
    assert bytes_copied(lambda: stage.decode(seqs)).copied == 0


def test_inputs_lie_at_the_same_addresses_whatever_the_batch(small):
    seen = []

    class Noting(OneTable):
        def inputs(self, seqs):
            self.noted = super().inputs(seqs)
            return self.noted

        def build(self, seqs):
            step = super().build(seqs)
            seen.append([x.data_ptr() for x in (*self.noted, *step.inputs, step.out)])
            return step

    stage, seqs = ready(Noting, small, [5, 30, 16], 16)
    for _ in range(4):
        decode_step(stage, seqs)
    stage.free(seqs.pop(0))
    decode_step(stage, seqs)
    assert len(seen) == 5 and all(addresses == seen[0] for addresses in seen)


@torch.inference_mode()
@pytest.mark.parametrize("piece", [1, 5, 16, 39])
def test_a_prompt_in_pieces_beside_a_decode_is_the_same(grouped, piece):
    """A flat batch of a piece of one prompt and a new token of another sequence, against each on its own."""
    (long, short) = prompts_of([40, 9], grouped.config.vocab_size)
    alone, whole = OneTable(grouped, num_blocks=8, block_size=16), Sequence(long)
    expected = alone.prefill(whole)
    other = Sequence(short)
    alone.prefill(other)
    other.append(3)
    expected_other = alone.decode([other])[0]

    stage, seq, decoding = OneTable(grouped, num_blocks=8, block_size=16), Sequence(long), Sequence(short)
    stage.prefill(decoding)
    decoding.append(3)
    stage.tables.reserve({seq.seq_id: len(seq), decoding.seq_id: len(decoding)})
    while seq.num_cached_tokens < len(seq):
        num_new = [min(piece, len(seq) - seq.num_cached_tokens), 1]
        token_ids, positions = stage.write_inputs([seq, decoding], num_new)
        hidden = grouped(token_ids, positions, stage.write_tables([seq, decoding], num_new))
        seq.num_cached_tokens += num_new[0]  # the other's token is written again, to the same slot
    logits = grouped.logits(hidden[-2:])
    torch.testing.assert_close(logits, torch.stack([expected, expected_other]), atol=1e-4, rtol=1e-4)
