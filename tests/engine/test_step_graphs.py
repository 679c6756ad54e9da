"""Steps that are captured: ready to be, equal to those that are not, and nothing touched that is not theirs."""

from __future__ import annotations

from random import Random

import pytest
import torch
from devices import ByModule
from oracles import assert_right, model_of, prompts_of, small_model
from small_engines import assert_empty, engine_of, requests, run_out

from roseinfer.engine import step_graphs
from roseinfer.engine.batch import StepShape, make_batch, size_for
from roseinfer.engine.engine import Engine
from roseinfer.engine.step import Step
from roseinfer.engine.step_graphs import sizes_up_to, step_shapes
from roseinfer.engine.warm_up import compile_prompts
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling.reachable import tensors_of
from roseinfer.profiling.replay import record_step, replay_differences
from roseinfer.sequence import SamplingParams, Sequence


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


def test_a_warm_up_writes_to_no_memory_that_a_step_before_it_still_copies(small, monkeypatch):
    engine = engine_for(small, [])
    inputs, copies = engine.runner.inputs, []
    begin, upload = inputs.begin, inputs.upload

    def begun() -> None:
        copies.clear()  # waited for
        begin()

    def uploaded(turn: int | None = None) -> None:
        assert not copies, "written without a wait for the last copy"
        copies.append(turn)
        upload(turn)

    monkeypatch.setattr(inputs, "begin", begun)
    monkeypatch.setattr(inputs, "upload", uploaded)
    compile_prompts(engine.runner)
    engine.runner.graphs.warm_up()
    assert len(copies) == 1


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


# Steps with drafts and prompts


def arrivals(model: Model, seed: int) -> list[tuple[int, Sequence]]:
    """Sequences of all lengths and the steps before which they come: some share a prefix, and some are drawn."""
    random = Random(seed)
    shared, *prompts = prompts_of(
        [20, *(random.choice((1, 2, 7, 8, 30, 61, 100)) for _ in range(11))], model.config.vocab_size
    )
    coming = []
    for i, prompt in enumerate(prompts):
        drawn = {"temperature": 0.8, "seed": i} if i % 4 == 3 else {}
        params = SamplingParams(max_tokens=random.randint(1, 16), ignore_eos=True, **drawn)
        coming.append((random.randint(0, 12), Sequence([*shared, *prompt] if i % 3 else prompt, params)))
    return sorted(coming, key=lambda one: one[0])


def run_arrivals(engine: Engine, coming: list[tuple[int, Sequence]]) -> list[list[int]]:
    """Return each one's tokens. What is free, and the dummy block, holds NaN before each step."""
    left, num_steps = list(coming), 0
    while left or engine.has_work:
        while left and (left[0][0] <= num_steps or not engine.has_work):
            engine.add(left.pop(0)[1])
        engine.pool.memory[:, :, [*engine.blocks.pool.free, engine.pool.dummy_block]] = torch.nan
        engine.step()
        engine.blocks.check()
        num_steps += 1
    assert_empty(engine)
    return [seq.output_ids for _, seq in coming]


OF_ANY_KIND = {
    "in turn": {},
    "one behind": {"async_scheduling": True},
    "chunks": {"max_num_batched_tokens": 70, "async_scheduling": True},
    "a small pool": {"num_blocks": 30, "async_scheduling": True},
    "drafts": {"speculative": {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1}},
    "drafts of another model": {"speculative": {"method": "draft_model", "num_tokens": 3}},
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("settings", OF_ANY_KIND.values(), ids=OF_ANY_KIND)
def test_steps_of_any_kind_give_what_eager_steps_give(small, grouped, settings, seed):
    if settings == OF_ANY_KIND["drafts of another model"]:
        settings = {"speculative": {**settings["speculative"], "model": grouped}}
    outputs = []
    for eager in (False, True):
        engine = engine_of(small, make_runner=ByModule, enforce_eager=eager, max_num_seqs=5, **settings)
        if engine.speculation:
            engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True
        coming = arrivals(small, seed)
        outputs.append(run_arrivals(engine, coming))
        if not eager:
            kinds = {min(size.max_query_len, 64) for size in engine.runner.graphs.graphs}
            assert kinds == {1, 4, 64} if engine.speculation else kinds == {1, 64}
        assert_right(small, [seq for _, seq in coming if not seq.params.temperature])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("warm", [True, False])
def test_a_draft_model_has_graphs_of_its_own(small, warm):
    engine = engine_of(
        small, make_runner=ByModule, speculative={"method": "draft_model", "model": small, "num_tokens": 3}
    )
    drafting = engine.speculation.proposer
    drafting.runner = ByModule(small, engine.blocks, 64)
    if warm:
        engine.warm_up()
        assert {*drafting.runner.graphs.graphs} == {*drafting.runner.graphs.sizes}
    engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True
    assert_right(small, run_out(engine, requests(small, (5, 8, 13, 40))))
    assert engine.metrics.num_accepted == engine.metrics.num_drafted > 0
    assert {size.is_decode for size in drafting.runner.graphs.graphs} == {True, False}


def test_after_an_error_in_a_graph_the_steps_behind_it_leave_nothing(small):
    """The step behind the one that fails is computed from tokens that no step chose, and made again."""
    for when in range(1, 6):
        seqs = requests(small, (5, 8, 13), max_tokens=5)
        engine = engine_for(small, seqs, async_scheduling=True)
        run, calls = engine.runner.graphs.run, []

        def fails_once(batch, when=when, run=run, calls=calls):
            calls.append(batch)
            if len(calls) == when:
                batch.last_tokens.fill_(96)
                raise RuntimeError("the device is on fire")
            return run(batch)

        engine.runner.graphs.run = fails_once
        while engine.has_work:
            try:
                engine.step()
            except RuntimeError:
                assert not engine.in_flight
        assert len(calls) > when
        assert_right(small, seqs)


def test_padding_is_one_sequence_in_the_dummy_block_and_those_behind_it_are_empty(small):
    engine = engine_for(small, [])
    seqs = requests(small, (3, 20))
    engine.blocks.reserve({seq.seq_id: len(seq) for seq in seqs})
    inputs, size = engine.runner.inputs, StepShape(64, 64, 9, 8)
    for hosted in inputs.host.values():
        hosted.fill(99)  # of a step before
    inputs.host["query_start"][0] = 0
    batch = make_batch(Step(seqs, [3, 20]), engine.blocks, inputs, None, engine.runner.graphs.sizes)
    dummy = engine.pool.dummy_block
    assert batch.shape == size and not batch.is_decode and batch.max_query_len == 64
    assert batch.query_start.tolist() == [0, 3, 23, *[64] * 7]
    assert batch.context_lens.tolist() == [3, 20, 41, *[0] * 6]
    assert batch.token_ids[23:].tolist() == batch.positions[23:].tolist() == [0] * 41
    assert batch.slot_mapping[23:].tolist() == [dummy * 8 + i % 8 for i in range(41)]
    assert batch.block_tables[2:].eq(dummy).all() and batch.sources.eq(-1).all()
    assert batch.sample_rows.tolist() == [2, 22, *[0] * 6]


def test_each_step_gets_the_first_shape_with_room_for_it():
    sizes = step_shapes(max_num_seqs=5, most_tokens=150, max_num_rows=20)
    assert sizes == [
        *(StepShape(1, n, n, n) for n in (1, 2, 4, 5)),
        *(StepShape(4, 4 * n, n + 1, 4 * n) for n in (1, 2, 4, 5)),
        *(StepShape(n, n, 6, 20) for n in (64, 128)),
    ]
    wanted = {
        StepShape(1, 3, 3, 3): sizes[2],
        StepShape(2, 2, 1, 2): sizes[4],  # a draft of one token
        StepShape(4, 4, 1, 4): sizes[4],
        StepShape(4, 5, 2, 5): sizes[5],
        StepShape(3, 9, 3, 9): sizes[6],  # a place more than sequences, for padding
        StepShape(5, 8, 4, 8): sizes[8],
        StepShape(64, 64, 1, 1): sizes[8],
        StepShape(30, 65, 5, 5): sizes[9],
    }
    assert {step: size_for(step, sizes) for step in wanted} == wanted
    longer = StepShape(129, 129, 1, 1)
    assert size_for(longer, sizes) == longer


def test_as_many_tokens_as_sequences_make_no_decode_step():
    """64 tokens in 64 sequences, one of them for padding: a chunk."""
    chunk = StepShape(64, 64, 64, 63)
    assert chunk in step_shapes(63, 512, 63) and not chunk.is_decode


def test_without_drafts_and_for_short_texts_decodes_alone_have_graphs():
    assert {size.max_query_len for size in step_shapes(8, 48, 8)} == {1}


@pytest.mark.parametrize("settings", [{"max_model_len": 5}, {"num_blocks": 1}, {"max_num_batched_tokens": 4}])
def test_a_warm_up_fits_into_a_small_engine(small, settings):
    engine = engine_of(small, make_runner=ByModule, **settings)
    compile_prompts(engine.runner)
    engine.warm_up()
    assert_right(small, run_out(engine, requests(small, (3,), max_tokens=2)))


@pytest.mark.parametrize("max_num_batched_tokens", [8, 1024])
def test_prompts_of_all_lengths_are_computed_before_the_first_request(small, max_num_batched_tokens):
    engine = engine_of(small, make_runner=ByModule, num_blocks=40, max_num_batched_tokens=max_num_batched_tokens)
    shapes, compute = [], engine.runner.compute
    engine.runner.compute = lambda batch: (shapes.append(batch.shape[:3]), compute(batch))[1]
    compile_prompts(engine.runner)
    given = {(n, n) for n in (2, 4, 8, 16, 32, 64, 128) if n <= max_num_batched_tokens}
    given |= {(n, 4 * n) for n in (2, 4, 8, 16, 32, 64) if 4 * n <= max_num_batched_tokens}
    given |= {(128, 256), (192, 192)} if max_num_batched_tokens == 1024 else {(4, 8)}
    given |= {(1, n) for n in (1, 2, 3, 4)}
    given |= {(2, n + 1) for n in (2, 3, 4)}  # decodes beside a prompt of two tokens
    assert {shape[:2] for shape in shapes} == given
    assert_empty(engine)


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, {1}), (5, {1, 2, 3, 4, 5}), (50, {1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 50})]
)
def test_decodes_are_computed_first_in_every_number_that_may_be_cut_otherwise(small, most, sizes):
    engine = engine_of(small, make_runner=ByModule, num_blocks=60, max_num_seqs=most)
    shapes, compute = [], engine.runner.compute
    engine.runner.compute = lambda batch: (shapes.append(batch.shape), compute(batch))[1]
    compile_prompts(engine.runner)
    assert {shape.num_seqs for shape in shapes if shape.is_decode} == sizes
    beside = {shape.num_seqs for shape in shapes if shape[:2] == (2, shape.num_seqs + 1)}
    assert beside - {1} == sizes - {1}


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (40, [1, 2, 4, 8, 16, 32, 40])]
)
def test_sizes(most, sizes):
    assert sizes_up_to(most) == sizes
