"""Taking turns: the order, the warm-up, and what is kept of it."""

from __future__ import annotations

import itertools

import torch

from roseinfer.bench.interleave import interleaved, turns
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
