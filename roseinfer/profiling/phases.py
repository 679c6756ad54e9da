"""The three labelled phases of a dense stage's decode step, from a trace: on the host, and on a device."""

from __future__ import annotations

from .chrome import Slice
from .trace import DEVICE_SPAN, DEVICE_WORK, HOST_SPAN, Trace

PHASES = {
    "gather": "roseinfer.decode_step_sessions.build_batched_past",
    "forward": "roseinfer.model.forward",
    "append": "roseinfer.kv.append_token",
}
STEP = "step"
PROFILED_STEP = "ProfilerStep#"  # a whole step as the profiler marks it: sampling, and on a GPU the wait for it, too


def host_phases(trace: Trace) -> dict[str, list[float]]:
    """Wall time in ms of each step that `capture` profiled: by phase, and of the whole step under "step"."""
    spans = [event for event in trace.slices if event.cat == HOST_SPAN]
    labelled = {phase: [e for e in spans if e.name == name] for phase, name in PHASES.items()}
    steps = _steps(trace)
    return {phase: _ms(events, steps) for phase, events in labelled.items()} | {STEP: _ms(steps, steps)}


def device_phases(trace: Trace) -> dict[str, list[float]]:
    """As host_phases, in time that kernels and memory copies ran on a GPU. They belong to the label that launched them.

    All 0 in a trace without a GPU.
    """
    work = [event for event in trace.slices if event.cat in DEVICE_WORK]
    labelled = {}
    for phase, name in PHASES.items():
        spans = [e for e in trace.slices if e.cat == DEVICE_SPAN and e.name == name]  # from first kernel to last
        labelled[phase] = [e for e in work if any(s.tid == e.tid and s.ts <= e.ts < s.end for s in spans)]
    steps = _steps(trace)
    return {phase: _ms(events, steps) for phase, events in labelled.items()} | {STEP: _ms(work, steps)}


def _steps(trace: Trace) -> list[Slice]:
    # A GPU has its own marks of these steps. The host's enclose its work too, for capture waits for each step.
    return [e for e in trace.slices if e.cat == HOST_SPAN and e.name.startswith(PROFILED_STEP)]


def _ms(events: list[Slice], steps: list[Slice]) -> list[float]:
    """What the events that start in a step last together, for each step."""
    return [sum(e.dur for e in events if step.ts <= e.ts < step.end) / 1e6 for step in steps]
