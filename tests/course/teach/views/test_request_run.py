"""A run of requests as it is recorded: the requests of each step, its time, and the gaps without a step."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from oracles import small_model

from course import teach
from course.teach.views.run_charts import spans_of
from roseinfer.blocks import OutOfBlocks
from roseinfer.engine.engine import Engine
from roseinfer.generate import generate
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence
from stages import Graphs, NaiveCat, Overlap, TokenBudget

ARRIVALS = [(0, 6, 5), (0, 20, 3), (1, 9, 4), (2, 3, 6), (2, 3, 1), (30, 4, 2)]
SIZES = {"num_blocks": 32, "block_size": 4, "max_num_seqs": 3}


def queues():
    model = small_model()
    return {
        "budget 8": TokenBudget(model, **SIZES, max_num_batched_tokens=8),
        "small pool": TokenBudget(model, **SIZES | {"num_blocks": 7}, max_num_batched_tokens=8),
        "no chunks": TokenBudget(model, **SIZES),
        "prompt by prompt": Graphs(model, **SIZES),
        "static": teach.StaticBatches(NaiveCat(model, **SIZES)),
        "engine": Engine(model, **SIZES, max_num_batched_tokens=8),
    }


@pytest.fixture(scope="module")
def runs():
    return {name: teach.record_run(queue, teach.work(small_model(), ARRIVALS)) for name, queue in queues().items()}


@pytest.mark.parametrize("name", queues())
def test_every_token_is_made_in_the_step_that_the_record_says(runs, name):
    run = runs[name]
    prompts = [prompt for _, prompt in teach.work(small_model(), ARRIVALS)]
    assert run.outputs == [
        reference_generate(small_model(), [prompt], n)[0] for prompt, (_, _, n) in zip(prompts, ARRIVALS, strict=True)
    ]
    for number, request in enumerate(run.requests):
        rows = list(run.rows_of(number))
        assert [run.steps[at].times for at, row in rows if row.got_token] == request.times.steps
        assert request.times.first_scheduled == run.steps[rows[0][0]].times.scheduled >= request.times.arrival
        assert request.times.ended == request.times.steps[-1].finish
        assert sum(row.num_new - row.num_recomputed for _, row in rows) == len(request.seq) - 1
    for step in run.steps:
        assert step.times.num_tokens == step.num_tokens <= (run.budget or step.num_tokens)
        assert step.times.num_new_tokens == sum(row.got_token for row in step.rows)
        assert step.times.finish == step.times.scheduled + 1


@pytest.mark.parametrize("name", queues())
def test_a_request_is_somewhere_from_its_arrival_to_its_last_token(runs, name):
    run = runs[name]
    for number, request in enumerate(run.requests):
        spans = spans_of(run, number)
        assert spans[0].begin == request.times.arrival and spans[-1].end == request.times.ended
        assert all(before.end == after.begin for before, after in pairwise(spans))
        assert all((span.tokens > 0) == (span.kind in ("prompt", "decode", "recomputed")) for span in spans)


def test_where_requests_stand_still(runs):
    kinds = {name: {span.kind for n in range(len(ARRIVALS)) for span in spans_of(run, n)} for name, run in runs.items()}
    assert "stalled" in kinds["prompt by prompt"] and "stalled" not in kinds["budget 8"]
    assert {"preempted", "recomputed"} <= kinds["small pool"] and "recomputed" not in kinds["budget 8"]
    assert runs["small pool"].num_preemptions > 0 == runs["budget 8"].num_preemptions


def test_a_stage_without_a_queue_runs_as_generate_runs_it(monkeypatch):
    work = teach.work(small_model(), [(0, *sizes) for _, *sizes in ARRIVALS])
    prompts = [prompt for _, prompt in work]
    params = [SamplingParams(max_tokens=arrival.output_len, ignore_eos=True) for arrival, _ in work]
    recorded = forwards_of(lambda stage: teach.record_run(stage, work), monkeypatch)
    assert recorded == forwards_of(lambda stage: generate(stage, prompts, params), monkeypatch)
    assert recorded[:5] == [[6], [20], [9], [7, 21, 10], [8, 22, 11]]


def forwards_of(run, monkeypatch):
    """The lengths of the sequences in each forward."""
    stage, forwards = Graphs(small_model(), **SIZES), []
    for name in ("first_tokens", "next_tokens"):
        monkeypatch.setattr(stage, name, partial(noted, forwards, getattr(stage, name)))
    run(stage)
    stage.tables.check()
    return forwards


def noted(forwards, method, seqs):
    forwards.append([len(seq) for seq in seqs])
    return method(seqs)


def test_nobody_joins_a_static_batch_that_decodes(runs):
    first = [next(run_rows)[0] for run_rows in map(runs["static"].rows_of, range(len(ARRIVALS)))]
    last = [request.times.steps[-1].finish for request in runs["static"].requests]
    assert first[:3] == [0, 1, 2]  # it is open until it decodes
    assert runs["static"].steps[first[3]].times.scheduled == max(last[:3])


def test_a_clock_of_ones_own_is_as_exact():
    work = teach.work(small_model(), ARRIVALS)
    run = teach.record_run(queues()["budget 8"], work, clock=lambda num_tokens: 10 + num_tokens)
    assert run.clock == "model"
    assert all(step.times.finish - step.times.scheduled == 10 + step.num_tokens for step in run.steps)


def test_by_the_wall_clock_nobody_is_scheduled_before_it_came():
    work = teach.work(small_model(), [(0.01 * i, 5, 3) for i in range(4)])
    run = teach.record_run(queues()["budget 8"], work, clock="wall")
    assert run.clock == "seconds"
    assert all(request.times.first_scheduled >= request.times.arrival for request in run.requests)
    assert run.metrics()["ttft"]["count"] == 4


def test_the_stage_is_left_as_it_was():
    stage = queues()["budget 8"]
    before = set(vars(stage))
    teach.record_run(stage, teach.work(small_model(), ARRIVALS))
    assert set(vars(stage)) == before and not stage.has_work and stage.num_free_blocks == SIZES["num_blocks"]


@pytest.mark.parametrize("name", ["budget 8", "prompt by prompt", "static", "engine"])
def test_after_an_error_nothing_of_the_run_stays(name, monkeypatch):
    queue = queues()[name]
    model = getattr(queue, "model", None) or queue.stage.model
    calls = iter(range(100))
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *args: forward(*args) if next(calls) < 3 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        teach.record_run(queue, teach.work(small_model(), ARRIVALS))
    if name in ("budget 8", "engine"):
        assert not queue.has_work
    blocks = queue.blocks if name == "engine" else getattr(queue, "stage", queue).tables
    assert blocks.num_free == SIZES["num_blocks"]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: teach.work(small_model(), []), "arrivals must be at least one, got none"),
        (lambda: teach.work(small_model(), [(2, 3, 4), (1, 3, 4)]), "must be in order of time"),
        (lambda: teach.record_run(queues()["engine"], [], clock="fast"), "clock must be .*'fast'"),
        (lambda: teach.draw_requests(), "runs must be at least one Run"),
        (lambda: teach.record_run(queues()["no chunks"], teach.work(small_model(), [(0, 200, 9)])), "200"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_stage_that_has_work_is_refused():
    stage, work = queues()["no chunks"], teach.work(small_model(), ARRIVALS)
    stage.add(Sequence([1, 2]))
    with pytest.raises(ValueError, match="no work before the run"):
        teach.record_run(stage, work)


def test_blocks_that_somebody_else_holds_are_an_error_and_not_a_hang():
    stage = Graphs(small_model(), **SIZES)
    stage.prefill(Sequence([1] * 60))
    with pytest.raises(OutOfBlocks, match="others hold"):
        teach.record_run(stage, teach.work(small_model(), [(0, 80, 4)]))


def test_a_preemption_that_is_refused_is_none():
    """While a step is in flight no sequence is preempted."""
    stage = Overlap(small_model(), **SIZES | {"num_blocks": 7}, max_num_batched_tokens=8)
    refused, preempt = [], stage.preempt

    def noted(seq):
        try:
            preempt(seq)
        except OutOfBlocks:
            refused.append(seq)
            raise

    stage.preempt = noted
    run = teach.record_run(stage, teach.work(small_model(), ARRIVALS))
    assert refused and run.num_preemptions == stage.num_preemptions > 0
