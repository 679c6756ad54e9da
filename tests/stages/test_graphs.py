"""Stage 13: a step fit to be captured, and padding rows that change no sequence."""

from __future__ import annotations

import pytest
import torch

from course.contract.small_models import small_model
from roseinfer.generate import begin, decode_step
from roseinfer.profiling.reachable import tensors_of
from roseinfer.profiling.replay import record_step, replay_differences
from roseinfer.sequence import SamplingParams
from stages import Graphs
from stages.s13_graphs import buckets_up_to


def running(stage_class, num_seqs, **sizes):
    stage = stage_class(small_model(), num_blocks=24, block_size=8, **sizes)
    stage.pool.fill_(torch.nan)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    return stage, begin(stage, [[3 + i] * (1 + i % 5) for i in range(num_seqs)], params)


def test_two_steps_could_be_one_graph():
    stage, seqs = running(Graphs, 3)
    kept = tensors_of(stage.model, stage.pool, stage.attended, stage.device_buffer)
    records = []
    for _ in range(2):
        decode_step(stage, seqs)
        with torch.inference_mode():
            records.append(record_step(stage.static_step(4), kept))
    first, second = records
    assert first.ops and first.violations == second.violations == replay_differences(first, second) == []


@pytest.mark.parametrize("num_seqs", [3, 4, 5])
def test_a_step_writes_its_own_slots_and_the_dummy_block_alone(num_seqs):
    stage, seqs = running(Graphs, num_seqs)
    decode_step(stage, seqs)
    stage.pool.nan_to_num_(7.0)
    stage.pool[:, :, stage.dummy_block] = 7.0
    before = stage.pool.clone()
    decode_step(stage, seqs)
    changed = (stage.pool != before).any(dim=(0, 1, 3, 5)).flatten().nonzero().flatten().tolist()
    own = sorted(stage.inputs_on_host["slot_mapping"][:num_seqs].tolist())
    assert changed == own + [stage.dummy_block * stage.block_size] * (num_seqs not in stage.buckets)


@pytest.mark.parametrize(
    ("most", "buckets"),
    [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (17, [1, 2, 4, 8, 16, 17]), (32, [1, 2, 4, 8, 16, 32])],
)
def test_the_largest_bucket_is_the_largest_batch(most, buckets):
    assert buckets_up_to(most) == buckets
