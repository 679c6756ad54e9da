"""Decode steps that are captured: ready to be, equal to those that are not, and nothing touched that is not theirs."""

from __future__ import annotations

import pytest
import torch
from devices import ByModule
from oracles import assert_right, model_of, small_model
from small_engines import engine_of, requests, run_out

from roseinfer.engine import step_graphs
from roseinfer.engine.engine import Engine
from roseinfer.engine.step_graphs import sizes_up_to
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling.reachable import tensors_of
from roseinfer.profiling.replay import record_step, replay_differences
from roseinfer.sequence import Sequence


def engine_for(model: Model, seqs: list[Sequence], **settings: bool) -> Engine:
    return engine_of(model, seqs, num_blocks=32, max_num_seqs=8, make_runner=ByModule, **settings)


def persistent(engine: Engine) -> list[torch.Tensor]:
    runner = engine.runner
    inputs = (*runner.inputs.device.values(), runner.inputs.last_tokens, *runner.sampler.inputs.device.values())
    return [*tensors_of(engine.model), runner.attended, runner.pool.memory, *inputs]


def decode_sizes(engine: Engine) -> set[int]:
    return {size.num_seqs for size in engine.runner.graphs.graphs if size.is_decode}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quantization"), [("gpt2", None), ("gpt2", "int8"), ("qwen3", None), ("llama", "int8")]
)
def test_decode_steps_could_replay_each_other(name, quantization):
    """Same operations on the same addresses, no wait, no tensor made of Python's values: for 3 sequences of any
    lengths, over block edges, with other sequences in the places of those that ended."""
    model = prepared_copy(model_of(name), quantization)
    engine = engine_for(model, requests(model, (5, 8, 13)))
    records = []
    for round_ in range(2):
        engine.step()
        for _ in range(8):
            scheduled = engine.scheduler.schedule()
            with torch.inference_mode():
                batch = engine.runner.prepare(scheduled)
                step = lambda: engine.runner.sampler(*engine.runner.compute(batch), scheduled.seqs)  # noqa: E731, B023
                records.append(record_step(step, persistent(engine)))
            engine.step()
        assert not engine.has_work
        for seq in requests(model, (21, 2, 16)) if round_ == 0 else ():
            engine.add(seq)
    assert [record.violations for record in records] == [[]] * 16
    assert all(replay_differences(records[0], record) == [] for record in records[1:])
    names = [name for name, _ in records[0].ops]
    in_modules = sum(name.startswith("paged_attention") for name in names)
    assert in_modules == model.config.num_layers


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_batches_that_grow_and_shrink_get_what_eager_steps_give(small, quantization):
    """Each size captured when it first comes, drawn rows beside greedy ones, and NaN in every free block."""
    model = prepared_copy(small, quantization)
    outputs = []
    for settings in ({}, {"enforce_eager": True}):
        torch.manual_seed(0)
        seqs = [
            *requests(model, (3, 9, 20), max_tokens=5),
            *requests(model, (8, 1), 12, temperature=0.8, seed=3),
            *requests(model, (7, 16), 9),
            *requests(model, (2,), 14),
            *requests(model, (30,), 18),
        ]
        engine = engine_for(model, [], **settings)
        waiting = list(seqs)
        while waiting or engine.has_work:
            if waiting:
                engine.add(waiting.pop(0))
            free = engine.blocks.free_blocks()
            engine.pool.memory[:, :, [*free, engine.pool.dummy_block]] = torch.nan
            engine.step()
        outputs.append([seq.output_ids for seq in seqs])
        if settings:
            assert engine.runner.graphs is None
        else:
            assert decode_sizes(engine) == {1, 2, 4, 8}
    assert outputs[0] == outputs[1]


def test_three_sequences_in_four_rows_write_to_their_slots_and_to_the_dummy_block_alone(small):
    seqs = requests(small, (5, 8, 13))
    engine = engine_for(small, seqs)
    engine.step()
    engine.step()
    engine.pool.memory.copy_(torch.randn(engine.pool.memory.shape))
    before = engine.pool.memory.clone()
    new = engine.scheduler.schedule().seqs
    slots = {(engine.blocks.of(seq.seq_id)[seq.num_cached_tokens // 8], seq.num_cached_tokens % 8) for seq in new}
    engine.step()
    changed = (engine.pool.memory != before).any(dim=(0, 1, 3, 5)).nonzero().tolist()  # [num_blocks + 1, block_size]
    assert decode_sizes(engine) == {4}
    assert {tuple(at) for at in changed} == slots | {(engine.pool.dummy_block, 0)}


@pytest.mark.parametrize("warm", [True, False])
def test_a_step_that_cannot_be_captured_runs_as_it_is_and_a_warning_says_why(small, warm, monkeypatch):
    tried = []

    def fail(*step: object, **memory: object) -> None:
        tried.append(step)
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(step_graphs, "capture", fail)
    engine = engine_for(small, [])
    seqs = requests(small, (5, 8, 13))
    with pytest.warns(UserWarning, match=r"without a graph where none is captured yet: operation not permitted$"):
        if warm:
            engine.warm_up()
        run_out(engine, seqs)
    assert len(tried) == 1 and not engine.runner.graphs.graphs
    assert_right(small, seqs)


def test_a_warm_up_leaves_the_engine_as_it_was(small):
    engine = engine_for(small, [])
    engine.warm_up()
    run_out(engine)
    assert decode_sizes(engine) == {1, 2, 4, 8}
    assert_right(small, run_out(engine, requests(small, (11,))))


def test_a_row_that_is_not_finite_is_told_of_by_a_graph_too(small):
    """And nothing is appended to its sequence."""
    model = small_model()
    seqs = requests(model, (5, 8, 3))
    engine = engine_for(model, seqs)
    engine.step()
    engine.step()
    weight = model.ln_f.weight.clone()
    model.ln_f.weight.fill_(torch.nan)
    lengths = [len(seq) for seq in seqs]
    assert engine.step() == seqs
    assert [(len(seq), seq.finish_reason) for seq in seqs] == [(length, "error") for length in lengths]
    model.ln_f.weight.copy_(weight)
    assert_right(small, run_out(engine, requests(model, (5,))))


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (40, [1, 2, 4, 8, 16, 32, 40])]
)
def test_sizes(most, sizes):
    assert sizes_up_to(most) == sizes
