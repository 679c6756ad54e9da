"""race_lanes: the same requests on stages whose device has its own clock, runs alternating, as live bars."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

from course.display.speed_bars import SpeedBars
from roseinfer.bench.workload import Work
from roseinfer.display.chart import show_live
from roseinfer.display.table import Table

from ..measure.request_run import name_of
from .step_lanes import record_lanes

RUNS = 5


def race_lanes(stages: Sequence[Any], work: Work, device_ms: float, host_ms: float = 0, runs: int = RUNS) -> Table:
    """Show tokens per second by the wall clock: bars that grow with each run in a notebook, then a table.

    The floor is the speed of a device that computes a step in device_ms and never pauses. host_ms: as for record_lanes.
    Raises AssertionError when the stages do not make the same tokens.
    """
    names = [name_of(stage) for stage in stages]
    warm = [record_lanes(stage, work) for stage in stages]
    for name, lanes in zip(names, warm, strict=True):
        assert lanes.outputs == warm[0].outputs, f"{name} makes other tokens than {names[0]}"
    num_tokens = sum(map(len, warm[0].outputs))
    floor = 1e3 * num_tokens / (device_ms * len(warm[0].sizes))
    bars = SpeedBars(names, f"Race({', '.join(names)})")
    title = f"{num_tokens} tokens, device {device_ms:g} ms per step, host {host_ms:g} ms more"
    speeds: dict[str, list[float]] = {name: [] for name in names}
    handle = None
    for _ in range(runs):
        for name, stage in zip(names, stages, strict=True):
            speeds[name].append(1e3 * num_tokens / record_lanes(stage, work, host_ms=host_ms).end)
        bars.show(title, {name: (median(own), min(own), max(own)) for name, own in speeds.items()}, floor)
        if handle is not None:
            handle.update(bars)
        handle = handle or show_live(bars)
    rows = [
        {"steps": name, "tokens": num_tokens, "tok/s": median(own), "speed": median(own) / median(speeds[names[0]])}
        for name, own in speeds.items()
    ]
    formats = {"tok/s": "{:,.0f}", "speed": "×{:.2f}"}
    return Table(pd.DataFrame(rows), exact=["steps", "tokens"], live=list(formats), formats=formats, title=title)
