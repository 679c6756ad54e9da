"""The scheduler benchmark: who runs when, what is timed, and that nothing is lost, on the engine and on stages."""

from __future__ import annotations

import itertools
from functools import partial
from importlib import import_module

import pytest

from roseinfer.bench.scheduler import ServerRun, Workload, serve, summarize, words_as_tokens
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.engine import Engine
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from stages import BlockTableCache, SelectAppend

PROMPTS = ("a b c", "a", "d e f g h", "b b", "c a d")


def words(prompts: tuple[str, ...] = PROMPTS, vocab_size: int = 64, **params) -> Workload:
    return Workload(prompts, words_as_tokens(vocab_size), SamplingParams(**params))


def ticks():
    """A clock that shows 0, 1, 2, ... each time it is read."""
    return itertools.count().__next__


def stamps(run: ServerRun) -> list[tuple[float, float, float]]:
    """When each request was first scheduled, had its first token, and its last."""
    return [(own.first_scheduled, own.steps[0].finish, own.ended) for own in run.times]


def prompt_tokens(run: ServerRun) -> list[int]:
    """The tokens of prompts that each step computed."""
    return [step["prompt_tokens"] for step in run.to_dict()["steps"]]


@pytest.fixture
def vocab(small) -> int:
    return small.config.vocab_size


DRIVEN = (SelectAppend, BlockTableCache, EngineStage)


@pytest.mark.parametrize("places", [1, 2, 5])
@pytest.mark.parametrize("stage", DRIVEN, ids=lambda stage: stage.name)
def test_tokens_are_those_of_the_plain_loop(small, vocab, places, stage):
    work = words(vocab_size=vocab, max_tokens=7, ignore_eos=True)
    run, _ = serve(stage, small, work, places)
    expected = reference_generate(small, [work.encode(p) for p in PROMPTS], max_tokens=7)
    assert [seq.output_ids for seq in run.seqs] == expected
    assert [seq.num_prompt_tokens for seq in run.seqs] == [3, 1, 5, 2, 3]


@pytest.mark.parametrize(("places", "batch_sizes"), [(1, [1] * 15), (9, [5] * 3), (4, [4, 4, 4, 1, 1, 1])])
@pytest.mark.parametrize("stage", DRIVEN, ids=lambda stage: stage.name)
def test_batches_are_as_large_as_places_and_requests_let_them(small, vocab, places, batch_sizes, stage):
    run, _ = serve(stage, small, words(vocab_size=vocab, max_tokens=4, ignore_eos=True), places)
    assert [len(lens) for lens in run.decode_steps.values()] == batch_sizes
    assert run.completion_tokens == 20 and run.prompt_tokens == 14 == sum(prompt_tokens(run))
    longest = (4, 2, 6, 3, 4)[:places]
    assert sorted(next(iter(run.decode_steps.values()))) == sorted(longest)


def test_the_engine_computes_prompts_together_and_a_stage_one_by_one(small, vocab):
    work = words(vocab_size=vocab, max_tokens=2, ignore_eos=True)
    prompts = {stage.name: prompt_tokens(serve(stage, small, work)[0]) for stage in (SelectAppend, EngineStage)}
    assert prompts == {SelectAppend.name: [3, 1, 5, 2, 3, 0], "engine": [14, 0]}


def test_what_is_timed(small, vocab):
    """Each reading of the clock is one tick: two for each text, one as all come, two a step."""
    work = words(("a", "b", "c"), vocab, max_tokens=3, ignore_eos=True)
    run, _ = serve(SelectAppend, small, work, max_batch_size=2, clock=ticks())
    # texts 0-1, 2-3, 4-5; all come at 6; a 7-8, b 9-10, {a, b} 11-12, 13-14; c 15-16, alone 17-18, 19-20
    assert stamps(run) == [(7, 8, 14), (9, 10, 14), (15, 16, 20)]
    assert {own.arrival for own in run.times} == {6}
    assert (run.decode_seconds, run.total_seconds) == (4, 10)
    assert run.ttft == [2, 2, 2]  # its text and its prompt
    assert run.tpot == [3, 2, 2]  # with the prefill of the one after it
    assert run.latency == [8, 6, 6]
    figures = {stat.metric: stat.values for stat in summarize([run, run])}
    assert figures == {
        "Decode time": (4, 4),
        "Total time": (10, 10),
        "Throughput(completion,decode)": (2.25, 2.25),
        "Throughput(completion,total)": (0.9, 0.9),
        "TTFT": (2000, 2000),
        "TPOT": (2000, 2000),
        "Latency": (6000, 6000),
    }


def test_what_is_timed_of_the_engine(small, vocab):
    """Four ticks a step: it is scheduled, begins, ends, and its sequences have their tokens."""
    work = words(("a", "b", "c"), vocab, max_tokens=3, ignore_eos=True)
    run, _ = serve(EngineStage, small, work, max_batch_size=2, clock=ticks())
    # texts until 5; all come at 6; {a, b} 7-10, 11-14, 15-18; c 19-22, 23-26, 27-30
    assert stamps(run) == [(7, 10, 18), (7, 10, 18), (19, 22, 30)]
    assert (run.decode_seconds, run.total_seconds) == (4 * 3, 3 + 2 * 3 + 4 * 3)


@pytest.fixture
def ahead(monkeypatch):
    """Let the engine launch the next step before it reads the tokens of this one, as it does on a GPU."""
    monkeypatch.setattr(import_module(Workload.__module__), "Engine", partial(Engine, async_scheduling=True))


def test_what_is_timed_of_an_engine_that_launches_ahead(small, vocab, ahead):
    """Each tick of the wall counts for one step alone, from the first scheduling to the last token."""
    work = words(("a", "b", "c"), vocab, max_tokens=3, ignore_eos=True)
    run, _ = serve(EngineStage, small, work, max_batch_size=2, clock=ticks())
    # Of {a, b}: 7-8 and 9-10 launch two steps, 11-12 end the first; 13-14, 15-16; at 17 nothing is left to launch,
    # 18-19. Of c: 20-21 and 22-23 launch two steps, 24-25 end the first; 26-27, 28-29; 30, 31-32.
    assert stamps(run) == [(7, 12, 19), (7, 12, 19), (20, 25, 32)]
    assert [*run.step_seconds.values()] == [12 - 7, 16 - 12, 19 - 16, 25 - 20, 29 - 25, 32 - 29]
    assert (run.decode_seconds, run.total_seconds) == (4 + 3 + 4 + 3, 3 + (19 - 7) + (32 - 20))
    assert [step["seconds"] for step in run.to_dict()["steps"]] == [5, 4, 3, 5, 4, 3]
    assert run.ttft == [6, 6, 6] and run.tpot == [3.5, 3.5, 3.5] and run.latency == [13, 13, 13]


@pytest.mark.parametrize("places", [1, 2, 5])
def test_an_engine_that_launches_ahead_gives_the_tokens_of_steps_in_turn(small, vocab, places, request):
    """A request stops inside, while its next step is in flight: the surplus token is no request's and no prompt's."""
    greedy = words(vocab_size=vocab, max_tokens=6, ignore_eos=True)
    stop = serve(EngineStage, small, greedy)[0].seqs[2].output_ids[1]
    work = words(vocab_size=vocab, max_tokens=6, ignore_eos=True, stop_token_ids=(stop,))
    in_turn, _ = serve(EngineStage, small, work, places)
    request.getfixturevalue("ahead")
    run, _ = serve(EngineStage, small, work, places)
    assert [seq.output_ids for seq in run.seqs] == [seq.output_ids for seq in in_turn.seqs]
    assert {seq.finish_reason for seq in run.seqs} == {"stop", "length"}
    assert sum(prompt_tokens(run)) == sum(prompt_tokens(in_turn)) == run.prompt_tokens
    assert sum(map(len, run.context_lens.values())) == run.completion_tokens - len(PROMPTS)
    wall = run.steps[-1].finish - run.steps[0].scheduled
    assert sum(run.step_seconds.values()) <= wall < sum(step.finish - step.scheduled for step in run.steps)


def test_tokenizing_before_the_run_takes_no_time(small, vocab):
    work = Workload(("a", "b"), words_as_tokens(vocab), SamplingParams(max_tokens=2, ignore_eos=True), pretok=True)
    run, _ = serve(SelectAppend, small, work, clock=ticks())
    assert run.encode_seconds == [0, 0] and run.ttft == [1, 1]


def test_p50_and_mean_are_over_runs_and_of_latencies_the_median_request(small, vocab):
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    work = Workload(("a", "b", "c"), words_as_tokens(vocab), params, pretok=True)
    slow = iter([0, 0, 1, 1, 2, 2, 12, 12, 13])
    shown = ticks()
    runs = [serve(SelectAppend, small, work, clock=clock)[0] for clock in (lambda: next(slow), shown, shown)]
    stats = {stat.metric: stat for stat in summarize(runs)}
    assert stats["TTFT"].values == (1000, 1000, 1000)
    latency = stats["Latency"]
    assert latency.values == (12000, 5000, 5000) and latency.p50 == 5000
    assert latency.mean == pytest.approx(22000 / 3)


@pytest.mark.parametrize("stage", DRIVEN, ids=lambda stage: stage.name)
def test_a_request_that_stops_leaves_its_place_to_others_and_its_token_is_counted(small, vocab, stage):
    greedy = words(vocab_size=vocab, max_tokens=6, ignore_eos=True)
    full, _ = serve(stage, small, greedy)
    stop = full.seqs[2].output_ids[1]
    work = words(vocab_size=vocab, max_tokens=6, ignore_eos=True, stop_token_ids=(stop,))
    run, _ = serve(stage, small, work, max_batch_size=2)
    for seq, whole in zip(run.seqs, full.seqs, strict=True):
        ids = whole.output_ids
        cut = ids.index(stop) + 1 if stop in ids else len(ids)
        assert seq.output_ids == ids[:cut]
    assert sum(map(len, run.context_lens.values())) == run.completion_tokens - len(PROMPTS)


def test_a_request_of_one_token_has_no_tpot(small, vocab):
    work = words(vocab_size=vocab, max_tokens=1)
    run, _ = serve(SelectAppend, small, work)
    assert run.decode_steps == {} and {len(seq.output_ids) for seq in run.seqs} == {1}
    assert [stat.metric for stat in summarize([run])] == [
        "Decode time",
        "Total time",
        "Throughput(completion,total)",
        "TTFT",
        "Latency",
    ]


def test_a_profile_has_three_steps_and_its_run_goes_on(small, vocab):
    work = words(vocab_size=vocab, max_tokens=9, ignore_eos=True)
    run, trace = serve(SelectAppend, small, work, max_batch_size=5, profile=True)
    assert trace.count("roseinfer.decode_step_sessions.total") == 3
    assert trace.metadata["warmup"] == 2
    assert [len(lens) for lens in run.decode_steps.values()] == [5] * 8


def test_a_profile_of_an_engine_that_launches_ahead_has_three_steps_too(small, vocab, ahead):
    work = words(vocab_size=vocab, max_tokens=9, ignore_eos=True)
    run, trace = serve(EngineStage, small, work, max_batch_size=5, profile=True)
    assert trace.count("roseinfer.engine.commit") == trace.count("roseinfer.engine.schedule") == 3
    assert [len(lens) for lens in run.decode_steps.values()] == [5] * 8


def test_bad_input(small, vocab):
    work = words(vocab_size=vocab, max_tokens=3)
    with pytest.raises(ValueError, match="max_batch_size must be an integer of at least 1, got 0"):
        serve(SelectAppend, small, work, max_batch_size=0)
    with pytest.raises(ValueError, match=r"takes six decode steps .*left to decode after 2; ask"):
        serve(SelectAppend, small, work, profile=True)
    with pytest.raises(ValueError, match="prompts must be at least one"):
        words((), vocab)
    with pytest.raises(ValueError, match="prompt must have at least one token, got '  '"):
        words(("a", "  "), vocab)


def test_pretok_encodes_once_and_before(small):
    calls = []

    def encode(text):
        calls.append(text)
        return [1]

    for pretok, in_the_run in ((True, []), (False, ["x", "x", "y"])):
        work = Workload(["x", "x", "y"], encode, SamplingParams(max_tokens=1), pretok)
        assert sorted(calls) == ["x", "y"]
        calls.clear()
        serve(SelectAppend, small, work)
        assert calls == in_the_run
        calls.clear()
