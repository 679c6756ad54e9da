"""Steps in flight: a depth of 2 gives what a depth of 1 gives; the next step is launched before this one is read."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import pairwise
from threading import Event
from time import sleep

import pytest
import torch
from devices import ByModule
from oracles import assert_right, prompts_of, values_of
from small_engines import SCHEDULES, assert_empty, engine_of

from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2
from roseinfer.overlap import OwnClock
from roseinfer.reference import hf_generate, reference_generate
from roseinfer.sequence import SamplingParams, Sequence

LENGTHS = (5, 8, 13, 1, 30, 17, 2, 24)


overlapped = partial(engine_of, async_scheduling=True)


def run(engine: Engine, seqs: list[Sequence], at_a_time: int | None = None) -> list[list[int]]:
    """Each one's new tokens, as steps gave them. at_a_time: so many more come before each step, None for all."""
    given: dict[int, list[int]] = {seq.seq_id: [] for seq in seqs}
    coming = list(seqs)
    while coming or engine.has_work:
        for seq in coming[: at_a_time or len(coming)]:
            engine.add(seq)
        del coming[: at_a_time or len(coming)]
        for seq in engine.step():
            given[seq.seq_id].append(seq.last_token_id)
        engine.blocks.check()
    assert_empty(engine)
    assert list(given.values()) == [seq.output_ids for seq in seqs]
    return list(given.values())


def llm_of(model: GPT2, async_scheduling: bool = True, **sizes: int) -> LLM:
    sizes = {"max_num_seqs": 3, "block_size": 16, "num_kvcache_blocks": 24} | sizes
    return LLM(model, tokenizer="tiny", async_scheduling=async_scheduling, **sizes)


def requests(model: GPT2, **params) -> list[Sequence]:
    """Sequences of mixed lengths, in and out."""
    return [
        Sequence(prompt, SamplingParams(**{"max_tokens": 3 + 5 * (i % 4)} | params))
        for i, prompt in enumerate(prompts_of(LENGTHS, model.config.vocab_size))
    ]


@pytest.mark.parametrize("at_a_time", [None, 1])
@pytest.mark.parametrize("settings", SCHEDULES.values(), ids=SCHEDULES)
def test_the_tokens_are_the_reference_s_and_transformers(small: GPT2, settings, at_a_time):
    engine, seqs = overlapped(small, **settings), requests(small)
    run(engine, seqs, at_a_time)
    assert_right(small, seqs, reference_generate, hf_generate)
    assert engine.depth == 2 and isinstance(engine.runner.thread, OwnClock)
    if engine.blocks.num_blocks == 9 and not at_a_time:
        assert engine.scheduler.num_preemptions


@pytest.mark.parametrize("settings", SCHEDULES.values(), ids=SCHEDULES)
def test_sequences_that_stop_anywhere_and_drawn_rows_are_those_of_steps_in_turn(small: GPT2, settings):
    """A token of each sequence's own greedy output is what it stops at; others are drawn, with seeds of their own."""
    greedy = reference_generate(small, [seq.token_ids for seq in requests(small)], 12)
    outputs, reasons = [], []
    for async_scheduling in (False, True):
        seqs = requests(small, max_tokens=12)
        for i, (seq, ids) in enumerate(zip(seqs, greedy, strict=True)):
            drawn = {"temperature": 0.9, "seed": i, "top_k": 20} if i % 3 == 2 else {}
            seq.params = SamplingParams(max_tokens=12, stop_token_ids=[ids[i]], **drawn)
        outputs.append(run(engine_of(small, async_scheduling=async_scheduling, **settings), seqs))
        reasons.append([seq.finish_reason for seq in seqs])
    assert outputs[0] == outputs[1] and reasons[0] == reasons[1] and {"stop", "length"} == set(reasons[0])


@pytest.mark.parametrize("stop", range(2, 12))
def test_a_surplus_token_is_computed_and_neither_given_nor_kept(small: GPT2, stop):
    """The sequence stops anywhere in its blocks: what the prefix cache holds of it afterwards is a part of its text."""
    [ids] = reference_generate(small, [requests(small)[0].token_ids], 12)
    rows = []
    for async_scheduling in (False, True):
        engine = engine_of(small, async_scheduling=async_scheduling, block_size=4)
        launch = engine.runner.launch
        steps: list[int] = []
        engine.runner.launch = lambda step, launch=launch, steps=steps: (steps.append(len(step.seqs)), launch(step))
        stops = requests(small, max_tokens=12, stop_token_ids=[ids[stop]])[0]
        goes_on = requests(small, max_tokens=14)[1]
        outputs = run(engine, [stops, goes_on])
        length = ids.index(ids[stop]) + 1  # where that token comes first
        assert outputs[0] == ids[:length] and engine.metrics.num_new_tokens == length + 14
        assert engine.metrics.num_tokens == len(stops) - 1 + len(goes_on) - 1
        texts = [stops.token_ids[i : i + 4] for i in range(0, 4 * ((len(stops) - 1) // 4), 4)]
        kept = [entry.token_ids for entry in engine.blocks.prefix_cache.entries.values()]
        others = [goes_on.token_ids[i : i + 4] for i in range(0, len(goes_on), 4)]
        assert [text for text in kept if text not in others] == texts
        rows.append(sum(steps))
    assert rows[1] == rows[0] + 1  # the one that no sequence gets


def test_logprobs_and_samples_and_texts_are_those_of_steps_in_turn(tiny: GPT2):
    outputs = []
    for async_scheduling in (False, True):
        llm = llm_of(tiny, async_scheduling, max_num_seqs=4, num_kvcache_blocks=40)
        params = [
            SamplingParams(max_tokens=9, logprobs=3, stop=["e"]),
            SamplingParams(max_tokens=20, logprobs=0),
            SamplingParams(max_tokens=12, temperature=1.0, seed=5, n=3, logprobs=2),
            SamplingParams(max_tokens=1),
        ]
        done = llm.generate(["The ", "A list", "def f", "x"], params, use_tqdm=False)
        outputs.append([sample for output in done for sample in output.outputs])
        assert_empty(llm.engine)
    for in_turn, other in zip(*outputs, strict=True):
        for name in ("text", "token_ids", "finish_reason", "stop_reason"):
            assert getattr(in_turn, name) == getattr(other, name)
        if in_turn.logprobs is not None:  # of batches with other rows beside them, so rounded otherwise
            assert len(in_turn.logprobs) == len(in_turn.token_ids)
            for a, b in zip(in_turn.logprobs, other.logprobs, strict=True):
                assert values_of(a) == pytest.approx(values_of(b), abs=1e-4)


# When


def test_the_next_step_is_launched_before_this_one_is_read(small: GPT2):
    """And the host goes on while the device has not even begun."""
    [seq] = requests(small, max_tokens=4)[:1]
    engine = overlapped(small, [seq])
    events: list[str] = []
    may_compute = Event()
    launch, step, wait = engine.runner.launch, engine.runner.compute, engine.runner.wait

    def blocked_step(batch):
        assert may_compute.wait(timeout=60)  # a host that waited for the first step would never go on
        events.append("computed")
        return step(batch)

    def noted_launch(step):
        launch(step)
        events.append("launched")

    def noted_wait(in_flight):
        may_compute.set()
        token_ids = wait(in_flight)
        events.append("read")
        return token_ids

    engine.runner.compute, engine.runner.launch, engine.runner.wait = blocked_step, noted_launch, noted_wait
    assert engine.step() == []
    assert events == ["launched"]
    assert engine.step() == [seq]
    assert [event for event in events if event != "computed"] == ["launched", "launched", "read"]
    list(drive(engine))
    order = [event for event in events if event != "computed"]
    assert order == ["launched", "launched", "read", "launched", "read", "launched", "read", "read"]
    assert events.count("computed") == 4


def test_a_block_is_given_again_only_to_a_step_behind_the_last_one_that_reads_it(small: GPT2):
    """In the device's order: which step reads which block, and which writes it for another sequence."""
    engine = overlapped(small, num_blocks=12, enable_prefix_caching=False)
    launch = engine.runner.launch
    flights = []

    def noted(step):
        flights.append((step, {seq.seq_id: list(engine.blocks.of(seq.seq_id)) for seq in step.seqs}))
        launch(step)

    engine.runner.launch = noted
    run(engine, requests(small), at_a_time=1)
    works = [step.future for step, _ in flights]
    assert all(one.ended <= next_.began for one, next_ in pairwise(works))  # in order, one at a time
    owners: dict[int, int] = {}
    num_moved = 0
    for _, tables in flights:
        held = [(block, seq_id) for seq_id, blocks in tables.items() for block in blocks]
        assert len({block for block, _ in held}) == len(held)  # never two sequences in a step
        for block, seq_id in held:
            num_moved += owners.get(block, seq_id) != seq_id
            owners[block] = seq_id
    assert num_moved > 10


def test_inputs_are_uploaded_as_they_were_written(small: GPT2):
    """While a step waits for the device the next one's are written, to other memory."""
    engine = overlapped(small)
    inputs, launch = engine.runner.inputs, engine.runner.launch
    upload, written, uploaded = inputs.upload, [], []

    def noted_launch(step):
        launch(step)
        written.append({name: x.copy() for name, x in inputs.hosts[inputs.turn].items()})

    def late_upload(turn):
        sleep(0.002)  # the host writes meanwhile
        uploaded.append({name: x.copy() for name, x in inputs.hosts[turn].items()})
        upload(turn)

    engine.runner.launch, inputs.upload = noted_launch, late_upload
    run(engine, requests(small))
    assert len(written) == len(uploaded) > 10
    for wrote, sent in zip(written, uploaded, strict=True):
        assert all((wrote[name] == sent[name]).all() for name in wrote)


def test_results_that_the_next_replay_overwrites_are_read_before(small: GPT2):
    """As CUDA graphs do it: few sizes, filled up, and every step's logits and tokens lie in the same memory."""
    engine = overlapped(small, make_runner=ByModule)
    graphs = engine.runner.graphs
    replay, memory = graphs.run, {}

    def run_in_place(batch):
        for i, result in enumerate(replay(batch)):
            kept = memory.setdefault(i, torch.zeros(4, *result.shape[1:], dtype=result.dtype))
            kept[: len(result)] = result
        return memory[0][: len(batch.sample_rows)], memory[1][: len(batch.sample_rows)]

    graphs.run = run_in_place
    seqs = requests(small)
    run(engine, seqs)
    assert_right(small, seqs)
    assert {size.num_seqs for size in graphs.graphs if size.is_decode} == {1, 2, 4}


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_tokens_come_to_memory_that_is_made_once_for_each_step_in_flight(small: GPT2, async_scheduling):
    engine = engine_of(small, requests(small), async_scheduling=async_scheduling)
    wait, memories = engine.runner.wait, []

    def noted(step):
        tokens = wait(step)
        memories.append(step.future.result().memory.tokens.data_ptr())
        return tokens

    engine.runner.wait = noted
    list(drive(engine))
    assert 1 <= len(set(memories)) <= engine.depth < len(memories)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_inputs_of_steps_and_of_draws_have_a_memory_for_each_step_in_flight(small: GPT2, async_scheduling):
    """To write to one whose copy is still under way, the host would have to wait for the step before."""
    engine = engine_of(small, async_scheduling=async_scheduling)
    assert len(engine.runner.inputs.hosts) == len(engine.runner.sampler.inputs.hosts) == engine.depth


# What goes wrong


def test_nobody_is_preempted_while_a_step_that_computes_it_is_in_flight(small: GPT2):
    engine = overlapped(small, num_blocks=8)
    preempt, in_flight = engine.scheduler.preempt, []
    engine.scheduler.preempt = lambda seq: in_flight.append(len(engine.in_flight)) or preempt(seq)
    run(engine, requests(small))
    assert in_flight and not any(in_flight)


@pytest.mark.parametrize("when", [1, 2, 3, 4])
def test_after_an_error_of_the_model_the_same_steps_are_made_again(small: GPT2, when):
    engine = overlapped(small, seqs := requests(small))
    step, calls = engine.runner.compute, []

    def fails_once(batch):
        calls.append(batch)
        if len(calls) == when:
            raise RuntimeError("the device is on fire")
        return step(batch)

    engine.runner.compute = fails_once
    with pytest.raises(RuntimeError, match="on fire"):
        while engine.has_work:
            lengths = [len(seq) for seq in seqs]
            engine.step()
    assert [len(seq) for seq in seqs] == lengths and not engine.in_flight
    for _ in drive(engine):
        engine.blocks.check()
    assert_right(small, seqs)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_step_that_failed_before_its_blocks_were_copied_copies_them_again(small: GPT2, async_scheduling):
    parent = requests(small, max_tokens=9)[2]  # 13 tokens: its last block is to be copied
    sample = Sequence(parent.token_ids, parent.params, parent=parent)
    engine = engine_of(small, [parent, sample], async_scheduling=async_scheduling)
    copy_blocks, copied = engine.pool.copy_blocks, []

    def fails_once(copies):
        if copies and not copied:
            copied.append(copies)
            raise MemoryError
        copy_blocks(copies)

    engine.pool.copy_blocks = fails_once
    while engine.has_work:
        with suppress(MemoryError):
            engine.step()
    assert copied
    assert_right(small, [parent, sample])


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_aborted_in_flight_its_blocks_are_free_at_once_and_its_token_is_dropped(small: GPT2, steps):
    engine = overlapped(small, seqs := requests(small), max_num_batched_tokens=8)
    for _ in range(steps):
        engine.step()
    victim = next(seq for seq in seqs if seq in engine.in_flight[0].seqs)
    length = len(victim)
    engine.abort(victim)
    assert victim.seq_id not in engine.blocks
    for _ in drive(engine):
        engine.blocks.check()
    assert (len(victim), victim.finish_reason) == (length, "abort")
    assert_right(small, seqs)


def test_the_last_abort_leaves_nothing_in_flight(small: GPT2):
    engine = overlapped(small, seqs := requests(small)[:2])
    engine.step()
    for seq in seqs:
        engine.abort(seq)
    assert_empty(engine)


@pytest.mark.parametrize("where", ["reading", "commit", "launch"])
def test_interrupted_anywhere_a_stream_beside_it_gets_its_own_tokens(small: GPT2, where):
    """And its log-probabilities, each once."""
    engine = overlapped(small, seqs := requests(small, logprobs=1)[:3])
    engine.step(), engine.step()
    calls = []

    def interrupt(*args):
        calls.append(args)
        raise KeyboardInterrupt

    owner, name = {
        "reading": (type(engine.in_flight[0].future), "result"),
        "commit": (engine.scheduler, "commit"),
        "launch": (engine.runner, "launch"),
    }[where]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert calls and not engine.in_flight
    engine.abort(seqs[0])
    for _ in drive(engine):
        engine.blocks.check()
    assert_right(small, seqs)
    assert all([[*row][0] for row in seq.logprobs] == seq.output_ids for seq in seqs[1:])


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_step_without_work_is_refused(small: GPT2, async_scheduling):
    with pytest.raises(ValueError, match="step needs a sequence that waits or runs: add one first"):
        engine_of(small, async_scheduling=async_scheduling).step()


def test_who_takes_what_pays(tiny: GPT2):
    """On a CPU host and device share the cores: steps in turn, unless told otherwise."""
    llm = LLM(tiny, tokenizer="tiny", num_kvcache_blocks=8)
    assert llm.engine.depth == 1
    with pytest.raises(ValueError, match="async_scheduling must be True, False or None, got 'yes'"):
        LLM(tiny, tokenizer="tiny", num_kvcache_blocks=8, async_scheduling="yes")


TEXTS = ["The ", "A list is", "def f", "x", "An object"]


def test_a_run_in_the_middle_of_a_stream_and_an_abort_disturb_nobody(tiny: GPT2):
    llm, params = llm_of(tiny), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    wanted = {output.prompt: output.outputs[0].token_ids for output in llm.generate(TEXTS, params, use_tqdm=False)}
    last = {}
    for i, output in enumerate(llm.stream(TEXTS[:3], params)):
        last[output.prompt] = output
        if i == 4:
            assert [o.outputs[0].token_ids for o in llm.generate(TEXTS[3:], params, use_tqdm=False)] == [
                wanted[text] for text in TEXTS[3:]
            ]
        if i == 2:
            llm.abort(output.request_id)
            aborted = output.prompt
    assert_empty(llm.engine)
    for text, output in last.items():
        token_ids, reason = output.outputs[0].token_ids, output.outputs[0].finish_reason
        assert token_ids == wanted[text][: len(token_ids)]
        assert reason == ("abort" if text == aborted else "length")
