"""The scheduler benchmark: who is decoded when, what is timed, and that nothing is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.bench.scheduler import Workload, make_workload, serve, summarize, words_as_tokens
from roseinfer.bench.scheduler.server import MODES, Server, fresh_stage
from roseinfer.generate import generate
from roseinfer.sequence import SamplingParams
from stages import BlockTableCache, SelectAppend

PROMPTS = ("a b c", "a", "d e f g h", "b b", "c a d")


def words(prompts: tuple[str, ...] = PROMPTS, vocab_size: int = 64, **params) -> Workload:
    return make_workload(prompts, words_as_tokens(vocab_size), SamplingParams(**params))


def ticks():
    """A clock that shows 0, 1, 2, ... each time it is read."""
    return itertools.count().__next__


@pytest.fixture
def vocab(small) -> int:
    return small.config.vocab_size


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", [SelectAppend, BlockTableCache], ids=lambda stage: stage.name)
def test_tokens_are_those_of_the_plain_loop_in_every_mode(small, vocab, mode, stage):
    work = words(vocab_size=vocab, max_tokens=7, ignore_eos=True)
    run, _ = serve(mode, stage, small, work, max_batch_size=2)
    expected = generate(fresh_stage(stage, small, work), [work.encode(p) for p in PROMPTS], work.params)
    assert [list(request.output_ids) for request in run.requests] == [seq.output_ids for seq in expected]
    assert [request.prompt_len for request in run.requests] == [3, 1, 5, 2, 3]


def test_online_decodes_in_turn_those_that_waited_longest(small, vocab):
    work = words(vocab_size=vocab, max_tokens=3, ignore_eos=True)
    server = Server(fresh_stage(SelectAppend, small, work), work, max_batch_size=2)
    for prompt in PROMPTS:
        server.add(prompt)
    lengths = []
    while server.busy:
        server.step()
        lengths.append([len(seq.output_ids) for seq in server._seqs])
    assert lengths == [
        [2, 2, 1, 1, 1], [2, 2, 2, 2, 1], [3, 2, 2, 2, 2], [3, 3, 3, 2, 2], [3, 3, 3, 3, 3]
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "batch_sizes"), [("naive", [1] * 15), ("offline", [5] * 3), ("online", [4, 4, 4, 3])])
def test_batches_of_each_mode(small, vocab, mode, batch_sizes):
    run, _ = serve(mode, SelectAppend, small, words(vocab_size=vocab, max_tokens=4, ignore_eos=True), max_batch_size=4)
    assert [step.batch_size for step in run.steps] == batch_sizes
    assert run.completion_tokens == 20 and run.prompt_tokens == 14
    assert run.steps[0].context_lens == {"naive": (4,), "offline": (4, 2, 6, 3, 4), "online": (4, 2, 6, 3)}[mode]


def test_what_is_timed(small, vocab):
    """Each reading of the clock is one tick: two an add, two a step, and a token is in hand when its step ends."""
    work = words(("a", "b", "c"), vocab, max_tokens=3, ignore_eos=True)
    run, _ = serve("online", SelectAppend, small, work, max_batch_size=2, clock=ticks())
    # adds 0-1, 2-3, 4-5; steps {a, b} 6-7, {c, a} 8-9, {b, c} 10-11
    assert [(r.submitted, r.first_token, r.finished) for r in run.requests] == [(0, 1, 9), (2, 3, 11), (4, 5, 11)]
    assert (run.prefill_seconds, run.decode_seconds, run.total_seconds) == (3, 3, 6)
    assert [r.ttft for r in run.requests] == [1, 1, 1]
    assert [r.tpot for r in run.requests] == [4, 4, 3]  # with the adds and steps of the others
    assert [r.latency for r in run.requests] == [9, 9, 7]
    figures = {stat.metric: stat.values for stat in summarize([run, run])}
    assert figures == {
        "Decode time": (3, 3), "Total time": (6, 6), "Throughput(completion,decode)": (3, 3),
        "Throughput(completion,total)": (1.5, 1.5), "TTFT": (1000, 1000), "TPOT": (4000, 4000),
        "Latency": (9000, 9000),
    }  # fmt: skip


def test_naive_serves_one_request_to_its_end_before_the_next(small, vocab):
    work = words(("a", "b"), vocab, max_tokens=3, ignore_eos=True)
    run, _ = serve("naive", SelectAppend, small, work, clock=ticks())
    assert [(r.submitted, r.first_token, r.finished) for r in run.requests] == [(0, 1, 5), (6, 7, 11)]


def test_p50_and_mean_are_over_runs_and_of_latencies_the_median_request(small, vocab):
    work = words(("a", "b", "c"), vocab, max_tokens=2, ignore_eos=True)
    slow = iter([0, 1, 1, 2, 2, 12, 12, 13])
    one, _ = serve("offline", SelectAppend, small, work, clock=lambda: next(slow))
    two, _ = serve("offline", SelectAppend, small, work, clock=ticks())
    ttft = next(stat for stat in summarize([one, two, two]) if stat.metric == "TTFT")
    assert ttft.values == (1000, 1000, 1000)
    latency = next(stat for stat in summarize([one, two, two]) if stat.metric == "Latency")
    assert latency.values == (12000, 5000, 5000) and latency.p50 == 5000
    assert latency.mean == pytest.approx(22000 / 3)


def test_a_request_that_stops_leaves_its_turn_to_others_and_its_token_is_counted(small, vocab):
    greedy = words(vocab_size=vocab, max_tokens=6, ignore_eos=True)
    full, _ = serve("offline", SelectAppend, small, greedy)
    stop = full.requests[2].output_ids[1]
    work = words(vocab_size=vocab, max_tokens=6, ignore_eos=True, stop_token_ids=(stop,))
    run, _ = serve("online", SelectAppend, small, work, max_batch_size=2)
    for request, whole in zip(run.requests, full.requests, strict=True):
        ids = whole.output_ids
        cut = ids.index(stop) + 1 if stop in ids else len(ids)
        assert request.output_ids == ids[:cut]
    assert sum(step.batch_size for step in run.steps) == run.completion_tokens - len(PROMPTS)


def test_a_request_of_one_token_has_no_tpot_and_its_blocks_are_free(small, vocab):
    work = words(vocab_size=vocab, max_tokens=1)
    run, _ = serve("online", SelectAppend, small, work)
    assert run.steps == () and {len(r.output_ids) for r in run.requests} == {1}
    assert [stat.metric for stat in summarize([run])] == [
        "Decode time", "Total time", "Throughput(completion,total)", "TTFT", "Latency"
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    max_tokens=st.integers(1, 5),
    max_batch_size=st.integers(1, 8),
    stop=st.sets(st.integers(0, 63), max_size=12),
)
def test_nothing_is_lost(small, lengths, max_tokens, max_batch_size, stop):
    prompts = tuple(" ".join(str(i) * (j + 1) for j in range(n)) for i, n in enumerate(lengths))
    params = {"max_tokens": max_tokens, "ignore_eos": True, "stop_token_ids": tuple(stop)}
    work = words(prompts, small.config.vocab_size, **params)
    stages = []

    def check(stage):
        stage.tables.check()
        stages.append(stage)

    run, _ = serve("online", SelectAppend, small, work, max_batch_size, after_step=check)
    for request in run.requests:
        ended = request.output_ids[-1] in stop or len(request.output_ids) == max_tokens
        assert ended and not set(request.output_ids[:-1]) & stop
    assert all(step.batch_size <= max_batch_size for step in run.steps)
    assert sum(step.batch_size for step in run.steps) == run.completion_tokens - len(prompts)
    if stages:
        assert stages[-1].num_free_blocks == stages[-1].tables.num_blocks and len(stages[-1].tables) == 0


def test_a_profile_has_three_steps_and_its_run_goes_on(small, vocab):
    work = words(vocab_size=vocab, max_tokens=9, ignore_eos=True)
    run, trace = serve("online", SelectAppend, small, work, max_batch_size=5, profile=True)
    assert trace.count("roseinfer.decode_step_sessions.total") == 3
    assert trace.metadata["warmup"] == 2
    assert [step.batch_size for step in run.steps] == [5] * 8


def test_bad_input(small, vocab):
    work = words(vocab_size=vocab, max_tokens=3)
    with pytest.raises(ValueError, match=r"mode='onlin' \(nearest: online\), allowed: naive, offline, online"):
        serve("onlin", SelectAppend, small, work)
    with pytest.raises(ValueError, match="max_batch_size must be an integer of at least 1, got 0"):
        serve("online", SelectAppend, small, work, max_batch_size=0)
    with pytest.raises(ValueError, match=r"takes six decode steps .*left to decode after 2 steps"):
        serve("offline", SelectAppend, small, work, profile=True)
    with pytest.raises(ValueError, match="prompts must be at least one"):
        words((), vocab)
    with pytest.raises(ValueError, match="prompt must have at least one token, got '  '"):
        words(("a", "  "), vocab)


def test_pretok_encodes_once_and_before(vocab):
    calls = []

    def encode(text):
        calls.append(text)
        return [1]

    early = make_workload(["x", "x", "y"], encode, SamplingParams(), pretok=True)
    calls.clear()
    assert early.encode("x") == [1] and early.encode("x") is not early.encode("x") and calls == []
    late = make_workload(["x"], encode, SamplingParams())
    calls.clear()
    assert late.encode("x") == [1] and calls == ["x"]
