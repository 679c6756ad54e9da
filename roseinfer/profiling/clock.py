"""Clocks: read when a device has nothing left to do, and read around a piece of work."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

Clock = Callable[[], float]


def device_clock(device: torch.device, clock: Clock = perf_counter) -> Clock:
    """`clock`, read only once the device's queue is empty, so that what was launched before lies before."""
    if device.type != "cuda":
        return clock

    def now() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return now


def seconds_of(work: Callable[[], object], now: Clock = perf_counter) -> float:
    """Seconds of one call of `work` by the clock `now`."""
    began = now()
    work()
    return now() - began
