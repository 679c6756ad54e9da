"""time_runs: seconds of whole runs of several stages, by the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.workload import Work
from roseinfer.profiling.clock import seconds_of

from ..lesson15.stage_requests import request, run_out
from ..measure.request_run import name_of

RUNS = 5


def time_runs(stages: Sequence[Any], work: Work, runs: int = RUNS) -> dict[str, list[float]]:
    """Time `work`, all requests at once, on each stage, runs alternating; return the seconds of each run by stage name.

    Every stage runs once before, since the first steps capture graphs.
    """
    for stage in stages:
        _run(stage, work)
    return interleaved({name_of(stage): partial(seconds_of, partial(_run, stage, work)) for stage in stages}, runs)


def _run(stage: Any, work: Work) -> None:
    run_out(stage, *(request(prompt, arrival.output_len) for arrival, prompt in work))
