"""Measures for post 001: a decode step by phase, its wall time and its calls, for each batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from roseinfer.bench.contenders import StageContender, hf_contender
from roseinfer.bench.interleave import OnStep, Run, measure
from roseinfer.bench.ladder import random_prompts
from roseinfer.bench.settings import HF_NAME
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.planning.sizes import EngineSizes, PlannedEngine
from roseinfer.profiling import Floor, Machine, capture, decode_floor, measure_machine, stage_ops
from roseinfer.profiling.span_times import SpanTimes
from roseinfer.profiling.spans import listening
from roseinfer.profiling.traces.phases import PHASES, STEP, device_phases, host_phases, phase_times
from roseinfer.profiling.traces.trace import DEVICE_SPAN

from ..data import post_facts, post_table
from ..report.setting import Setting

UNPROFILED = 2  # decode steps that capture runs before those it keeps

# Time in ms of aten::cat in each step: its own on the host, or that of the work which it launches on a device.
CATS = """
WITH step AS (
  SELECT id, ts, ts + dur AS end_ts FROM slice WHERE cat = 'user_annotation' AND starts_with(name, 'ProfilerStep#')
), op AS (
  SELECT step.id AS step, slice.tid, slice.ts, slice.dur
  FROM slice JOIN step ON slice.ts >= step.ts AND slice.ts < step.end_ts
  WHERE slice.name = 'aten::cat' AND slice.cat = 'cpu_op'
)
"""
HOST_CATS = f"{CATS} SELECT SUM(dur)/1e6 AS ms FROM op GROUP BY step"
DEVICE_CATS = f"""{CATS}
SELECT SUM(work.dur)/1e6 AS ms
FROM op
JOIN slice launch ON launch.tid = op.tid AND launch.ts >= op.ts AND launch.ts < op.ts + op.dur
JOIN slice work ON work.args->>'correlation' = launch.args->>'correlation'
WHERE launch.cat IN ('cuda_runtime', 'cuda_driver') AND work.cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')
GROUP BY step
"""
KERNELS = """
SELECT regexp_replace(replace(name, '(anonymous namespace)::', ''), '^void |[(].*$', '', 'g') AS kernel,
  SUM(dur) / (SUM(SUM(dur)) OVER ()) AS share
FROM slice WHERE cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')
GROUP BY kernel ORDER BY share DESC, kernel LIMIT 3
"""

Samples = dict[str, list[float]]  # ms of each step, by phase and of the whole


@dataclass(frozen=True)
class Profile:
    """Profiled decode steps.

    device: None when no label of a GPU was seen. calls: the stage's own ops in a phase of a step. cat_ms: time of
    aten::cat in each step, on the device where there is one. kernels: those with the largest shares of the device's
    time, and these shares.
    """

    device: Samples | None
    calls: dict[str, Counter[str]]
    cat_ms: list[float]
    kernels: dict[str, float]


@dataclass(frozen=True)
class Batch:
    """One batch size. runs: raw samples of the runner, without the profiler. host: the phases of their steps."""

    size: int
    host: Samples
    profile: Profile
    runs: list[dict[str, Any]]
    floor: Floor

    @property
    def device(self) -> Samples | None:
        return self.profile.device

    @property
    def labelled(self) -> Samples:
        """The device's time of each phase where there is one, as in the post; else the host's."""
        return self.device or self.host

    @property
    def step_seconds(self) -> list[float]:
        """Wall time of each step of all runs."""
        return [seconds for run in self.runs for seconds in run["step_seconds"]]

    @property
    def step_ms(self) -> float:
        return 1e3 * median(self.step_seconds)


@dataclass(frozen=True)
class Measurements:
    """All measurements. sizes: of the engine with the largest batch. hf_runs: transformers at it; [] if not run."""

    stage: str
    sizes: EngineSizes
    prompt_len: int
    machine: Machine
    batches: list[Batch]
    hf_runs: list[dict[str, Any]]

    @property
    def has_device_times(self) -> bool:
        return self.batches[0].device is not None


def by_batch(table: str) -> pd.DataFrame:
    """Return one of the post's tables, by batch size."""
    return post_table("001", table).set_index("batch")


def labels_ms(samples: Samples) -> float:
    """Return the median over the steps of how long the three labels of a step last together."""
    return median(sum(phases) for phases in zip(*(samples[phase] for phase in PHASES), strict=True))


def unlabelled_ms(samples: Samples) -> float:
    """Return the median over the steps of how much longer a step lasts than its labels."""
    columns = (samples[name] for name in (STEP, *PHASES))
    return median(step - sum(phases) for step, *phases in zip(*columns, strict=True))


def tokens_per_second(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Compute each run's tokens per second from its median step, as another process may hold up a few steps."""
    return [run["decode_tokens"] / (len(run["step_seconds"]) * median(run["step_seconds"])) for run in runs]


def measure_post(
    setting: Setting, model: Model, configs: Sequence[PlannedEngine], *, repeats: int, with_hf: bool
) -> Measurements:
    """Profile the post's decode steps for each of `configs`, then run these and transformers in turn, `repeats` times.

    configs: one for each batch size, the largest last. Raises what capture and the contenders raise.
    """
    stage, num_steps = setting.stages["s04"], post_facts("001")["num_steps"]
    prompt_len = configs[-1].max_model_len - num_steps
    prompts = [random_prompts(model, config.max_num_seqs, prompt_len) for config in configs]
    entrants = [StageContender(stage, model, batch, num_steps) for batch in prompts]
    names = [f"{stage.name}, batch {config.max_num_seqs}" for config in configs]
    profiles = []
    for name, entrant in zip(names, entrants, strict=True):
        setting.say(f"profiling {name}")
        profiles.append(profile(entrant, num_steps - 1 - UNPROFILED))

    heard = {name: phase_times() for name in names}
    contenders = [(name, _heard(entrant, heard[name])) for name, entrant in zip(names, entrants, strict=True)]
    if with_hf:
        contenders.append(hf_contender(model, prompts[-1], num_steps))
    setting.say(f"{repeats} timed runs each, in turn: {', '.join(name for name, _ in contenders)}")
    runs = measure(contenders, repeats=repeats, warmup=0)  # warm from profiling; medians do without HF's first steps

    machine = measure_machine(model.device, model.dtype)
    context_len = prompt_len + num_steps // 2  # of the middle decode step
    batches = []
    for config, name, profiled in zip(configs, names, profiles, strict=True):
        own = [run for run in runs if run["name"] == name]
        host = host_phases(heard[name].kept, [seconds for run in own for seconds in run["step_seconds"]])
        floor = decode_floor(model.config, [context_len] * config.max_num_seqs, model.dtype, machine)
        batches.append(Batch(config.max_num_seqs, host, profiled, own, floor))
    hf_runs = [run for run in runs if run["name"] == HF_NAME]
    return Measurements(stage.name, configs[-1].sizes(), prompt_len, machine, batches, hf_runs)


def _heard(entrant: StageContender, listener: SpanTimes) -> Callable[[OnStep], Run]:
    def run(on_step: OnStep) -> Run:
        with listening(listener):
            return entrant.run(on_step)

    return run


def profile(entrant: StageContender, steps: int) -> Profile:
    """Profile that many decode steps."""
    stage, seqs = entrant.at_step(0)
    trace = capture(lambda: decode_step(stage, seqs), steps=steps, warmup=UNPROFILED - 1)
    on_gpu = any(event.cat == DEVICE_SPAN for event in trace.slices)
    device = device_phases(trace) if on_gpu else None
    calls = {phase: stage_ops(trace, name) for phase, name in PHASES.items()}
    cat_ms = trace.sql(DEVICE_CATS if on_gpu else HOST_CATS)["ms"].tolist()
    kernels = dict(trace.sql(KERNELS).itertuples(index=False))
    return Profile(device, calls, cat_ms, kernels)
