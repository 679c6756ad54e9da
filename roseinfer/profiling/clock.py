"""Clocks: read when a device has nothing left to do, and read around a piece of work."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

Clock = Callable[[], float]


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
