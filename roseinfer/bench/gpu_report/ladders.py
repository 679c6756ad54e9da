"""Ladders with transformers beside them, each as long as the time that is left allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from roseinfer.models import Model, load_model

from ..contenders import HF_NAMES, ContenderFailed, StageContender
from ..interleave import Run
from ..ladder import ladder, random_prompts
from ..ladder_result import LadderResult
from .context import Context, one_line
from .plan import LadderShape, Size

PROBE_TOKENS = 3  # one from the prefill, one of a cold step, one of a warm step


def ladders(context: Context) -> Iterator[dict[str, Any]]:
    """A LadderResult as dict for each ladder of the plan. Each may take an equal share of the time that is left."""
    plan, loaded = context.plan, (None, None)
    model = None
    for done, shape in enumerate(plan.ladders):
        seconds = context.seconds_left() / (len(plan.ladders) - done)
        if seconds <= 0:
            context.note(f"ladders: {len(plan.ladders) - done} of {len(plan.ladders)} not run, out of time")
            return
        if loaded != (shape.model, shape.dtype):
            model = None  # before the next one is loaded
            model = load_model(shape.model, device=context.device, dtype=getattr(torch, shape.dtype))
            loaded = (shape.model, shape.dtype)
        where = f"ladder of {shape.model}, {shape.dtype}, batch {shape.batch_size}"
        context.say(f"{where}, {seconds:.0f} s")
        try:
            result = one_ladder(context, shape, model, seconds)
        except Exception as error:  # the other ladders are run, and the report fails
            context.fail(f"{where}: {one_line(error)}")
            continue
        for name, reason in result.not_run.items():
            report = context.note if name in HF_NAMES.values() else context.fail
            report(f"{where}: {reason}")
        yield asdict(result)


def one_ladder(context: Context, shape: LadderShape, model: Model, seconds: float) -> LadderResult:
    """All stages and transformers with its two caches; who cannot run is in not_run, with the reason."""
    plan = context.plan
    # Half of the time for decoding; the other half for prefill, op counts and transformers' set-up.
    size = affordable(probe(context, shape, model), plan.ladder_sizes, seconds / 2)
    compiles = seconds >= plan.static_cache_seconds
    result = ladder(
        context.course.stages, model, batch_size=shape.batch_size, prompt_len=plan.prompt_len,
        max_new_tokens=size.max_new_tokens, repeats=size.repeats,
        hf_caches=("dynamic", "static") if compiles else ("dynamic",), keep_going=True,
    )  # fmt: skip
    not_run = {name: one_line(reason) for name, reason in result.not_run.items()}
    if not compiles:
        not_run[HF_NAMES["static"]] = (
            f"{seconds:.0f} s were left for this ladder, compiling takes {plan.static_cache_seconds:.0f}"
        )
    # Raw samples are most of the file; a tenth of a microsecond is finer than they are.
    samples = [s | {"step_seconds": [round(t, 7) for t in s["step_seconds"]]} for s in result.samples]
    return replace(result, arguments={"model": shape.model, **result.arguments}, not_run=not_run, samples=samples)


def probe(context: Context, shape: LadderShape, model: Model) -> list[Run]:
    """A short run of every stage. One that fails is left out here: the ladder itself says why it does."""
    prompts = random_prompts(model, shape.batch_size, context.plan.prompt_len)
    runs = []
    for stage in context.course.stages:
        try:
            runs.append(StageContender(stage, model, prompts, PROBE_TOKENS).run(lambda tokens, seconds: None))
        except ContenderFailed:
            continue
    return runs


def affordable(runs: list[Run], sizes: tuple[Size, ...], seconds: float) -> Size:
    """The first size that fits into `seconds` by the probes' last steps; the last one if none does.

    A size costs its repeats, one run for warm-up and one for counting ops.
    """
    for size in sizes:
        rounds = size.repeats + 2
        cost = sum(run.prefill_seconds + size.max_new_tokens * run.step_seconds[-1] for run in runs) * rounds
        if cost <= seconds:
            return size
    return sizes[-1]
