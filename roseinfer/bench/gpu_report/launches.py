"""What a decode step of the engine costs the host, with graphs and without: launches, and its time."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from roseinfer.engine.as_stage import EngineStage
from roseinfer.generate import decode_step
from roseinfer.models import Model, load_model
from roseinfer.profiling import Trace, capture
from roseinfer.profiling.clock import device_clock, seconds_of
from roseinfer.profiling.spans import SpanTimes, listening

from ..contenders import StageContender
from ..ladder import random_prompts
from .context import Context, one_line
from .engines import ENGINES

WARMUP, PROFILED = 3, 3  # steps: the profiler has one call to begin with, one of warm-up, and the one that counts
HOST_SPANS = ("roseinfer.engine.prepare", "roseinfer.engine.forward", "roseinfer.engine.sample")
HOST_CALLS = ("cuda_runtime", "cuda_driver")


def launches(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each (batch size, engine), of plan.trace_model."""
    plan = context.plan
    model = load_model(plan.trace_model, device=context.device, dtype=getattr(torch, plan.trace_dtype))
    for batch_size in plan.launch_batch_sizes:
        for engine in ENGINES:
            try:
                row = measured(engine, model, random_prompts(model, batch_size, plan.prompt_len), plan.launch_steps)
            except Exception as error:  # the other rows are measured, and the report fails
                context.fail(f"launches of {engine.name}, batch {batch_size}: {one_line(error)}")
                continue
            yield {"stage": engine.name, "batch_size": batch_size, **row}


def measured(engine: type[EngineStage], model: Model, prompts: list[list[int]], steps: int) -> dict[str, Any]:
    """Of one decode step: launches by the host and kernels on the device, host_seconds and step_seconds (medians).

    host_seconds: to write the inputs and to start all of the step's work. The host then waits for the tokens.
    """
    entrant = StageContender(engine, model, prompts, max_new_tokens=2 + WARMUP + steps + PROFILED)
    stage, seqs = entrant.at_step(WARMUP)
    times, now = SpanTimes(lambda name, around: name in HOST_SPANS), device_clock(model.device)
    host_seconds, step_seconds = [], []
    for _ in range(steps):
        with listening(times):
            step_seconds.append(seconds_of(lambda: decode_step(stage, seqs), now))
        host_seconds.append(sum(span.seconds for span in times.take()))
    counted = launch_counts(capture(lambda: decode_step(stage, seqs), steps=1, warmup=1))
    return counted | {"host_seconds": median(host_seconds), "step_seconds": median(step_seconds)}


def launch_counts(trace: Trace) -> dict[str, int]:
    """launches: calls of the host that start work on a GPU, a whole graph among them; kernels: that ran."""
    return {
        "launches": sum(e.cat in HOST_CALLS and "Launch" in e.name for e in trace.slices),
        "kernels": sum(e.cat == "kernel" for e in trace.slices),
    }
