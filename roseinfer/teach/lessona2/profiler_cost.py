"""say_profiler_cost: a step with the profiler beside the same step without it."""

from __future__ import annotations

from functools import partial
from statistics import median

from roseinfer.generate import decode_step
from roseinfer.profiling import Trace
from roseinfer.profiling.clock import seconds_of
from roseinfer.profiling.traces.trace import ANY_PROFILED_STEP, HOST_SPAN, span_label
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..views.said import Said, say

STEPS = 12  # without the profiler


def say_profiler_cost(trace: Trace, stage: Stage, seqs: list[Sequence]) -> Said:
    """Say how long the steps of a trace took, and how long further decode steps of its batch take without the profiler.

    Raises ValueError for a trace without the profiler's own marks of steps.
    """
    steps = [e for e in trace.slices if e.cat == HOST_SPAN and span_label(e.name) == ANY_PROFILED_STEP]
    if not steps:
        raise ValueError("trace must be one that capture made: it has no ProfilerStep")
    events = sum(any(step.ts <= e.ts < step.end for step in steps) for e in trace.slices) / len(steps)
    with_it = 1e3 * median(step.dur / 1e9 for step in steps)
    without = 1e3 * median(seconds_of(partial(decode_step, stage, seqs)) for _ in range(STEPS))
    return say(
        "a decode step with and without the profiler",
        f"A step with {events:,.0f} events takes {with_it:.2f} ms under the profiler, and {without:.2f} ms without it: "
        f"×{with_it / without:.2f}.",
    )
