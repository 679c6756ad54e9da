"""A few decode steps of every stage as trace files, small enough to be kept in the repository."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from roseinfer.generate import decode_step
from roseinfer.models import Model, load_model
from roseinfer.profiling import Trace, capture
from roseinfer.profiling.chrome import Slice, gzipped
from roseinfer.profiling.phases import PROFILED_STEP
from roseinfer.profiling.trace import DEVICE_SPAN, DEVICE_WORK, HOST_SPAN, METADATA_KEY
from roseinfer.stage import Stage

from ..contenders import StageContender
from ..ladder import random_prompts
from .context import Context, one_line

WARMUP = 2
# Triton launches its kernels through the driver, PyTorch its own through the runtime.
KEPT_CATEGORIES = {HOST_SPAN, DEVICE_SPAN, *DEVICE_WORK, "cpu_op", "cuda_runtime", "cuda_driver"}
KEPT_ARGS = ("correlation",)  # which launch started which kernel
KEPT_KEYS = ("schemaVersion", "displayTimeUnit", "deviceProperties", METADATA_KEY)


def traces(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each stage; its file replaces the one that an earlier report left."""
    plan, captured = context.plan, {}
    model = load_model(plan.trace_model, device=context.device, dtype=getattr(torch, plan.trace_dtype))
    for stage in context.course.stages:
        try:
            captured[stage.name] = captured_steps(context, stage, model)
        except Exception as error:  # the other stages' traces are kept, and the report fails
            context.fail(f"trace of {stage.name}: {one_line(error)}")
    files, steps = fitting(context, captured)
    context.traces.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = context.traces / f"{name}.json.gz"
        path.write_bytes(content)
        yield {"stage": name, "file": f"traces/{path.parent.name}/{path.name}", "steps": steps, "bytes": len(content)}


def captured_steps(context: Context, stage_class: type[Stage], model: Model) -> Trace:
    """trace_steps decode steps of one batch; its metadata say what it is a trace of."""
    plan = context.plan
    prompts = random_prompts(model, plan.trace_batch_size, plan.prompt_len)
    entrant = StageContender(stage_class, model, prompts, max_new_tokens=2 + WARMUP + plan.trace_steps)
    stage, seqs = entrant.at_step(0)
    trace = capture(lambda: decode_step(stage, seqs), steps=plan.trace_steps, warmup=WARMUP)
    trace.metadata.update(
        stage=stage_class.name, model=plan.trace_model, dtype=plan.trace_dtype, batch_size=plan.trace_batch_size,
        prompt_len=plan.prompt_len, commit=context.commit,
    )  # fmt: skip
    return trace


def fitting(context: Context, captured: dict[str, Trace]) -> tuple[dict[str, bytes], int]:
    """The trimmed files, with as many steps as keep them within plan.trace_bytes together; none if one is too many."""
    limit = context.plan.trace_bytes
    total = 0
    for steps in range(context.plan.trace_steps, 0, -1):
        files = {name: gzipped(trimmed(trace, steps)) for name, trace in captured.items()}
        total = sum(map(len, files.values()))
        if total <= limit:
            if steps < context.plan.trace_steps:
                context.note(f"traces: {steps} steps, not {context.plan.trace_steps}, to stay within {limit:,} bytes")
            return files, steps
    context.fail(f"traces: one step of each stage takes {total:,} bytes, allowed: {limit:,}; none is kept")
    return {}, 0


def trimmed(trace: Trace, steps: int) -> dict[str, Any]:
    """The first `steps` steps of a captured trace with what tables, SQL and timeline need. Times start at 0.

    Spans, ops and counts are those of the whole. Raises ValueError if the trace has fewer steps.
    """
    starts = [e.ts for e in trace.slices if e.cat == HOST_SPAN and e.name.startswith(PROFILED_STEP)]
    if not 1 <= steps <= len(starts):
        raise ValueError(f"steps must be an integer from 1 to {len(starts)}, the steps in the trace; got {steps!r}")
    end = starts[steps] if steps < len(starts) else float("inf")
    origin = trace.slices[0].ts
    kept = [e for e in trace.slices if e.cat in KEPT_CATEGORIES and e.ts < end]
    data = {key: trace.data[key] for key in KEPT_KEYS if key in trace.data}
    data[METADATA_KEY] = trace.metadata | {"steps": steps}
    labels = [event for event in trace.data["traceEvents"] if event.get("ph") == "M"]
    data["traceEvents"] = labels + [_event(e, origin) for e in kept]
    return data


def _event(e: Slice, origin: int) -> dict[str, Any]:
    event = {"ph": "X", "cat": e.cat, "name": e.name, "pid": e.pid, "tid": e.tid}
    args = {key: e.args[key] for key in KEPT_ARGS if key in (e.args or {})}
    # in microseconds, as the format has it
    return event | {"ts": (e.ts - origin) / 1000, "dur": e.dur / 1000} | ({"args": args} if args else {})
