"""The six timestamps of a request and what follows from them. The clock is a fake one, so every value is exact."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from small_engines import engine_of as any_engine

from roseinfer import LLM
from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import HISTORY, SequenceTimes
from roseinfer.engine.step import Step, StepRecord
from roseinfer.models import GPT2
from roseinfer.planning.definitions import METRICS, PERCENTILES, TIMESTAMPS, definitions, percentile, summary
from roseinfer.sequence import SamplingParams, Sequence

PARAMS = SamplingParams(max_tokens=3, ignore_eos=True)


class Ticks:
    """A clock that is read at second 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def engine_of(model: GPT2, **sizes) -> Engine:
    engine = any_engine(model, block_size=4, **sizes)
    engine.metrics.clock = Ticks()
    return engine


def run_out(engine: Engine) -> None:
    list(drive(engine))


# What is recorded


def test_a_step_reads_the_clock_four_times_and_its_tokens_share_the_times(small: GPT2):
    engine = engine_of(small)
    first, second = (engine.add(Sequence([1, 2, 3], PARAMS)) for _ in range(2))
    run_out(engine)
    assert (first.arrival, second.arrival) == (1, 2)
    steps = [tuple(step) for step in first.steps]
    assert steps == [(3, 4, 5, 6, 6, 2, 2, 0), (7, 8, 9, 10, 2, 2, 2, 0), (11, 12, 13, 14, 2, 2, 2, 0)]
    assert all(a is b for a, b in zip(first.steps, second.steps, strict=True))
    assert (first.first_scheduled, first.ended) == (3, 14)


def test_who_waits_is_counted_and_its_first_step_comes_later(small: GPT2):
    engine = engine_of(small, max_num_seqs=1)
    engine.add(Sequence([1, 2, 3], PARAMS))
    late = engine.add(Sequence([4, 5], PARAMS), arrival=0.5)
    run_out(engine)
    assert [(step.num_running, step.num_waiting) for step in engine.metrics.history] == [(1, 1)] * 3 + [(1, 0)] * 3
    assert late.arrival == 0.5 and late.first_scheduled == late.steps[0].scheduled == 14


def test_a_prompt_in_chunks_is_scheduled_before_the_step_of_its_first_token(small: GPT2):
    engine = engine_of(small, max_num_batched_tokens=4)
    times = engine.add(Sequence(list(range(1, 11)), PARAMS))
    run_out(engine)
    chunks = list(engine.metrics.history)[:3]
    assert [(step.num_tokens, step.num_new_tokens) for step in chunks] == [(4, 0), (4, 0), (2, 1)]
    assert times.first_scheduled == chunks[0].scheduled and times.steps[0] is chunks[2]


def test_a_preempted_sequence_keeps_its_times_and_is_counted(small: GPT2):
    engine = engine_of(small)
    seq = Sequence([1, 2, 3], PARAMS)
    times = engine.add(seq)
    engine.step()
    engine.scheduler.preempt(seq)
    run_out(engine)
    assert len(times.steps) == 3 and times.first_scheduled == times.steps[0].scheduled
    counters = engine.metrics.counters()
    assert counters["preemptions"] == 1 and counters["steps"] == 3
    assert counters["tokens"] == 3 + 4 + 1 and counters["new_tokens"] == 3  # its 4 tokens are computed again
    assert counters["running"] == counters["waiting"] == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_an_aborted_sequence_ends_when_it_was_aborted(small: GPT2, steps: int):
    engine = engine_of(small)
    seq = Sequence([1, 2, 3], PARAMS)
    times = engine.add(seq)
    for _ in range(steps):
        engine.step()
    engine.abort(seq)
    assert times.ended == 2 + 4 * steps and len(times.steps) == steps
    assert isnan(times.first_scheduled) == (steps == 0)


def test_the_hit_rate_is_the_caches_and_none_without_one(small: GPT2):
    for enabled, rate in ((True, 8 / 18), (False, None)):
        engine = engine_of(small, enable_prefix_caching=enabled)
        for _ in range(2):
            engine.add(Sequence(list(range(1, 10)), PARAMS))
            run_out(engine)
        assert engine.metrics.counters()["prefix_cache_hit_rate"] == rate


def test_only_the_last_steps_are_kept_and_no_sequence_that_ended(small: GPT2):
    engine = engine_of(small)
    step = Step([Sequence([1], PARAMS)], [1])
    step.scheduled, step.launched, step.load, step.num_given = 0.0, 0.0, (0, 0), [0]
    for n in range(HISTORY + 5):
        step.ended = float(n)
        engine.metrics.after_tokens(step, [])
    assert len(engine.metrics.history) == HISTORY and engine.metrics.num_steps == HISTORY + 5
    engine.add(Sequence([1], PARAMS))
    run_out(engine)
    assert not engine.metrics.live


def test_an_output_has_its_requests_timestamps_named_as_in_vllm(small: GPT2):
    llm = LLM(small, block_size=4, max_num_seqs=4, num_kvcache_blocks=16)
    llm.engine.metrics.clock = Ticks()
    seen = [output.metrics for output in llm.stream([[1, 2, 3]], PARAMS)]
    last = seen[-1]
    assert (last.arrival_time, last.first_scheduled_time, last.first_token_time) == (1, 2, 5)
    assert (last.last_token_time, last.finished_time, last.time_in_queue) == (13, 13, 1)
    assert [(one.last_token_time, one.finished_time) for one in seen] == [(5, None), (9, None), (13, 13)]


def test_of_several_samples_the_first_token_and_the_last(small: GPT2):
    llm = LLM(small, block_size=4, max_num_seqs=1, num_kvcache_blocks=16)
    llm.engine.metrics.clock = Ticks()
    [output] = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, ignore_eos=True, temperature=1, n=2, seed=0))
    m = output.metrics
    assert (m.arrival_time, m.first_scheduled_time, m.first_token_time) == (1, 3, 6)
    assert m.last_token_time == m.finished_time == 18  # the second sample ran after the first


# What follows


def steps_of(*finish: float, scheduled: float = 0.5) -> list[StepRecord]:
    return [StepRecord(at - scheduled, at - 0.375, at - 0.125, at) for at in finish]


TIMES = SequenceTimes(arrival=1.0, first_scheduled=1.75, steps=steps_of(3.0, 4.0, 7.0))
VALUES = {
    "waiting_time": [0.75],
    "scheduling_time": [0.125] * 3,
    "inference_time": [0.25] * 3,
    "latency": [0.5] * 3,
    "ttft": [2.0],
    "tpot": [2.0],
    "itl": [1.0, 3.0],
    "e2e_latency": [6.0],
}


def test_every_metric_is_what_its_formula_says():
    """The formula as Python reads it, over the timestamps."""
    finish = [step.finish for step in TIMES.steps]
    assert [metric.name for metric in METRICS] == list(VALUES)
    for metric in METRICS:
        assert metric.values(TIMES) == VALUES[metric.name], metric.name
        names = {"arrival": TIMES.arrival, "first_scheduled": TIMES.first_scheduled, "tokens": 3, "finish": finish}
        places = [1, 2] if "i-1" in metric.formula else range(3) if metric.per == "token" else [0]
        by_formula = []
        for i in places:
            stamps = TIMES.steps[i]._asdict() if "finish[" not in metric.formula else {}
            by_formula.append(eval(metric.formula, {}, {**names, **stamps, "i": i}))
        assert by_formula == VALUES[metric.name], metric.name


def test_none_is_below_zero_and_the_posts_waiting_time_never_above(small: GPT2):
    engine = engine_of(small, max_num_seqs=2)
    all_times = [engine.add(Sequence([1, 2], PARAMS)) for _ in range(5)]
    run_out(engine)
    for times in all_times:
        assert all(value >= 0 for metric in METRICS for value in metric.values(times))
        assert times.arrival - times.first_scheduled < 0
    assert "arrival_ts - first_scheduled_ts, which is never above 0" in definitions()["waiting_time"]


def test_what_is_not_known_has_no_value():
    nothing, one = SequenceTimes(1.0), SequenceTimes(1.0, 2.0, [StepRecord(finish=3.0)])
    assert all(metric.values(nothing) == [] for metric in METRICS)
    known = {metric.name: metric.values(one) for metric in METRICS if metric.values(one)}
    assert known == {"waiting_time": [1.0], "ttft": [2.0], "e2e_latency": [2.0]}
    assert summary([nothing]) == {}


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100, 101])
def test_percentiles_are_values_that_occurred(n: int):
    values = sorted(np.random.default_rng(n).random(n).tolist())
    for p in (0, *PERCENTILES, 100):
        assert percentile(values, p) == np.percentile(values, p, method="inverted_cdf")


def test_a_summary_has_each_token_or_request_once():
    later = SequenceTimes(2.0, 2.0, steps_of(4.0))
    found = summary([TIMES, later])
    assert found["ttft"] == {"count": 2, "mean": 2.0, "p50": 2.0, "p90": 2.0, "p99": 2.0, "max": 2.0}
    assert found["itl"] == {"count": 2, "mean": 2.0, "p50": 1.0, "p90": 3.0, "p99": 3.0, "max": 3.0}
    assert found["tpot"]["count"] == 1 and found["latency"]["count"] == 4


def test_every_timestamp_and_metric_is_defined_once():
    assert definitions().keys() == {*TIMESTAMPS, *VALUES, "percentiles"}
    assert {*TIMESTAMPS} == {*StepRecord._fields[:4], "arrival", "first_scheduled"}
