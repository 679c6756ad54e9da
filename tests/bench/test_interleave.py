"""Taking turns: the order, the warm-up, what is kept of it, and what is reported meanwhile."""

from __future__ import annotations

import itertools

import torch

from roseinfer.bench.interleave import Run, interleaved, measure, turns
from roseinfer.profiling.clock import MOST_REPEATS, device_clock, seconds_of


def test_every_round_starts_with_another_contender():
    assert [name for _, _, name in turns("ABC", repeats=3)] == list("ABCBCACAB")
    assert [(repeat, position) for repeat, position, _ in turns("AB", 1, warmup=1)] == [
        (-1, 0),
        (-1, 1),
        (0, 0),
        (0, 1),
    ]


def test_samples_are_kept_by_name_and_without_the_warm_up():
    calls = itertools.count()
    samples = interleaved({"a": lambda: next(calls), "b": lambda: next(calls)}, repeats=2, warmup=1)
    assert samples == {"a": [2, 5], "b": [3, 4]}


def test_work_lies_between_two_looks_at_the_clock():
    clock = map(float, itertools.count()).__next__
    assert device_clock(torch.device("cpu"), clock) is clock
    assert seconds_of(clock, clock) == 2.0


def test_a_gpus_clock_is_read_when_its_queue_is_empty(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", seen.append)
    now = device_clock(torch.device("cuda", 1), lambda: float(len(seen)))
    assert (now(), now()) == (1.0, 2.0) and seen == [torch.device("cuda", 1)] * 2


def test_a_run_whose_times_are_not_looked_at_takes_fewer_rounds(monkeypatch):
    monkeypatch.setenv(MOST_REPEATS, "2")
    assert [repeat for repeat, _, _ in turns("A", 5, warmup=1)] == [-1, 0, 1]
    assert [repeat for repeat, _, _ in turns("A", 1)] == [0]


# The ladder's runs


def recorded_runs(names: str, **arguments: object) -> list[dict]:
    def run(on_step) -> Run:
        on_step(2, 0.5)
        return Run(1.0, (0.5, 0.25), [[1, 2, 3], [4, 5, 6]])

    return measure([(name, run) for name in names], **arguments)


def test_what_processes_of_one_step_wait_for_each_other_is_not_counted():
    contender = ("A", lambda on_step: Run(1.0, (0.5,), [[1, 2]], num_processes=2))
    assert [sample["waited_seconds"] for sample in measure([contender], repeats=2)] == [None, None]


def test_samples_are_raw():
    samples = recorded_runs("A", repeats=2, warmup=3)
    waited = [sample.pop("waited_seconds") for sample in samples]
    assert all(seconds is None or seconds >= 0 for seconds in waited)
    assert samples == [
        {
            "name": "A",
            "repeat": repeat,
            "position": 0,
            "tokens": 6,
            "decode_tokens": 4,
            "seconds": 1.75,
            "prefill_seconds": 1.0,
            "decode_seconds": 0.75,
            "step_seconds": [0.5, 0.25],
            "tokens_per_second": 4 / (2 * 0.375),
        }
        for repeat in range(2)
    ]


def test_progress_tells_warm_up_from_timed_runs():
    seen = []
    recorded_runs("AB", repeats=1, warmup=1, on_progress=seen.append)
    assert [(p.phase, p.repeat, p.name, p.tokens, p.seconds, p.finished, p.runs_done) for p in seen] == [
        ("warm-up", -1, "B", 2, 0.5, False, 0),
        ("warm-up", -1, "B", 4, 0.75, True, 1),
        ("warm-up", -1, "A", 2, 0.5, False, 1),
        ("warm-up", -1, "A", 4, 0.75, True, 2),
        ("repeat 1 of 1", 0, "A", 2, 0.5, False, 2),
        ("repeat 1 of 1", 0, "A", 4, 0.75, True, 3),
        ("repeat 1 of 1", 0, "B", 2, 0.5, False, 3),
        ("repeat 1 of 1", 0, "B", 4, 0.75, True, 4),
    ]
    assert {p.runs_total for p in seen} == {4}


def test_a_run_under_way_goes_by_its_median_step_as_a_finished_one_does():
    def run(on_step) -> Run:
        steps = (1.0, 9.0, 3.0)
        for i in range(len(steps)):
            on_step(2 * (i + 1), sum(steps[: i + 1]))
        return Run(1.0, steps, [[1, 2, 3, 4], [5, 6, 7, 8]])

    seen = []
    measure([("A", run)], repeats=1, warmup=0, on_progress=seen.append)
    assert [(p.tokens, p.seconds, p.finished) for p in seen] == [
        (2, 1.0, False),
        (4, 10.0, False),
        (6, 9.0, False),
        (6, 9.0, True),
    ]
