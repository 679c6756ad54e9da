"""median_ms: the median time of calls that are made in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from roseinfer.bench.interleave import interleaved
from roseinfer.profiling.clock import seconds_of


def median_ms(calls: Mapping[str, Callable[[], object]], repeats: int = 20) -> dict[str, float]:
    """Measure the median time of each call in ms. The calls are made in turn, after two rounds that do not count."""
    timed = interleaved({name: partial(seconds_of, call) for name, call in calls.items()}, repeats, warmup=2)
    return {name: 1e3 * median(seconds) for name, seconds in timed.items()}
