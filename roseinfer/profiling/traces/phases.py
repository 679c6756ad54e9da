"""The three labelled phases of a dense stage's decode step: on the host by its spans, on a device by a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..span_times import SpanTimes, TimedSpan
from .chrome import Slice
from .trace import DEVICE_SPAN, DEVICE_WORK, HOST_SPAN, PROFILED_STEP, Trace

DECODE = "roseinfer.decode_step_sessions.total"
PHASES = {
    "gather": "roseinfer.decode_step_sessions.build_batched_past",
    "forward": "roseinfer.model.forward",
    "append": "roseinfer.kv.append_token",
}
STEP = "step"


def phase_times() -> SpanTimes:
    """Make a listener to the phases of decode steps."""
    return SpanTimes(lambda name, around: around == DECODE and name in PHASES.values())


def host_phases(spans: Iterable[TimedSpan], step_seconds: Sequence[float]) -> dict[str, list[float]]:
    """Return the wall times in ms of all steps, by phase, and of whole steps as "step"; without the profiler's cost.

    spans: those that phase_times kept of these steps.
    """
    spans = list(spans)
    samples = {phase: [span.seconds for span in spans if span.name == name] for phase, name in PHASES.items()}
    return {name: [1e3 * seconds for seconds in each] for name, each in (samples | {STEP: step_seconds}).items()}


def device_phases(trace: Trace) -> dict[str, list[float]]:
    """Sum the time of kernels and memory copies on a GPU by phase. They belong to the label that launched them.

    The times are of the steps that `capture` profiled; all are 0 in a trace without a GPU.
    """
    # They hold the sampling too. A GPU has its own marks of these steps; the host's enclose its work as well, for
    # capture waits for each step.
    steps = [e for e in trace.slices if e.cat == HOST_SPAN and e.name.startswith(PROFILED_STEP)]
    work = [event for event in trace.slices if event.cat in DEVICE_WORK]
    labelled = {STEP: work}
    for phase, name in PHASES.items():
        spans = [e for e in trace.slices if e.cat == DEVICE_SPAN and e.name == name]  # from first kernel to last
        labelled[phase] = [e for e in work if any(s.tid == e.tid and s.ts <= e.ts < s.end for s in spans)]
    return {phase: [_ms_within(span, events) for span in steps] for phase, events in labelled.items()}


def _ms_within(span: Slice, events: list[Slice]) -> float:
    """Sum the durations of the events that start in a span."""
    return sum(e.dur for e in events if span.ts <= e.ts < span.end) / 1e6
