"""Clocks: read when a device has nothing left to do, and read around a piece of work."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import torch

Clock = Callable[[], float]
MOST_REPEATS = "ROSEINFER_REPEATS"  # set where no time is looked at; one pass then measures the machine


def repeats_of(repeats: int) -> int:
    """Return how often to repeat a measurement: as often as asked, but at most ROSEINFER_REPEATS times."""
    return min(repeats, int(os.environ.get(MOST_REPEATS, repeats)))


def device_clock(device: torch.device, clock: Clock = perf_counter) -> Clock:
    """Make a clock that is read once the device's queue is empty, so all launched work lies before the reading."""
    if device.type != "cuda":
        return clock

    def now() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return now


def seconds_of(work: Callable[[], object], now: Clock = perf_counter) -> float:
    """Time one call of `work` in seconds by the clock `now`."""
    began = now()
    work()
    return now() - began


def seconds_of_calls(work: Callable[[], object], device: torch.device, calls: int) -> list[float]:
    """Time each of `calls` calls of `work` in seconds; on a GPU between two events, with no wait from call to call.

    So a GPU's times leave out what the host takes to launch a call, unless the GPU has to wait for it.
    """
    if device.type != "cuda":
        return [seconds_of(work) for _ in range(calls)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    events[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]
