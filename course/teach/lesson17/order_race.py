"""race_orders: scheduling policies on the same requests, in the simulator and on real engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import mean, median
from time import perf_counter
from typing import Any

import pandas as pd

from roseinfer.arrivals import Arrival
from roseinfer.bench.interleave import interleaved
from roseinfer.bench.online import serve
from roseinfer.bench.race import Run
from roseinfer.bench.verdict import explanation, verdict
from roseinfer.bench.workload import with_prompts
from roseinfer.display.table import Table
from roseinfer.engine.policies import Policy
from roseinfer.models import Model
from roseinfer.profiling.clock import Clock
from roseinfer.simulator import Cluster, Cost, EngineSetting, FittedCost, StepWork, fit, step_samples
from roseinfer.simulator.measure import CACHED, CUT, PROMPTS, real_engine
from roseinfer.simulator.metrics import summary

from ..measure.progress_bar import progress_bar

RUNS = 5
TARGET = 0.15  # of a simulation: how far its seconds may be off, either way
EXACT = ["policy", "steps", "rows a step", "preempted", "prompt tokens computed"]
FORMATS = {"rows a step": "{:.1f}", "simulated s": "{:.3f}", "real s": "{:.3f}", "mean latency s": "{:.3f}"}

Policies = Mapping[str, str | Callable[[], Policy]]  # by the name in the table; a class makes one policy per engine


def step_cost(model: Model, max_num_seqs: int, block_size: int) -> FittedCost:
    """Fit what a step of the engine takes on this machine to measured steps."""
    rounds, shapes = 2, len(PROMPTS) + len(CUT) + len(CACHED)  # one round is for warm-up
    with progress_bar("measuring steps of the engine", rounds * shapes) as done:
        samples = step_samples(
            model,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            repeats=rounds - 1,
            on_progress=lambda progress: done(),
        )
    return fit("steps of the engine, measured here", samples)


def race_orders(
    model: Model,
    setting: EngineSetting,
    arrivals: Sequence[Arrival],
    policies: Policies,
    cost: Cost,
    clock: Clock = perf_counter,
) -> Table:
    """Make one row per policy, and compare each with the first.

    The engines are warm. Each run has new prompts, so that none is in the prefix cache.
    """
    with progress_bar("runs of the engine", len(policies) * RUNS) as done:
        settings = {name: replace(setting, scheduling_policy=made(policy)) for name, policy in policies.items()}
        seeds = {name: count() for name in policies}
        engines = {name: real_engine(model, own) for name, own in settings.items()}

        for engine in engines.values():
            engine.metrics.clock = clock

        def run(name: str) -> Run:
            result = serve(engines[name], with_prompts(arrivals, model, next(seeds[name])))
            done()
            return result

        taken = interleaved({name: partial(run, name) for name in policies}, RUNS)
    speeds = {name: [1 / run.seconds for run in runs] for name, runs in taken.items()}
    first = next(iter(policies))
    rows: list[dict[str, Any]] = []
    for name, own in settings.items():
        rows.append({"policy": name} | _simulated(own, arrivals, cost) | _real(taken[name]))
        rows[-1]["against the first"] = "" if name == first else verdict(speeds[first], speeds[name])
    note = f"real: the median of {RUNS} interleaved runs, on engines that are warm. {explanation(RUNS)}"
    return Table(
        pd.DataFrame(rows),
        exact=EXACT,
        live=[*list(FORMATS)[1:], "against the first"],
        formats=FORMATS,
        note=note,
        title=f"{len(arrivals)} requests, simulated and for real",
    )


def made(policy: str | Callable[[], Policy]) -> str | Policy:
    return policy if isinstance(policy, str) else policy()


class _Counted:
    """A cost that counts the prompt tokens of all steps, those of preempted requests again."""

    def __init__(self, cost: Cost) -> None:
        self.cost, self.about, self.prompt_tokens = cost, cost.about, 0

    def seconds(self, work: StepWork) -> tuple[float, float]:
        self.prompt_tokens += work.prompt_tokens
        return self.cost.seconds(work)

    def to_dict(self) -> dict[str, Any]:
        return self.cost.to_dict()


def _simulated(setting: EngineSetting, arrivals: Sequence[Arrival], cost: Cost) -> dict[str, Any]:
    counted = _Counted(cost)
    cluster = Cluster(setting, counted)
    cluster.run(list(arrivals))
    found = summary(cluster)
    return {
        "steps": found["steps"],
        "rows a step": found["rows_per_step"],
        "preempted": found["preemptions"],
        "prompt tokens computed": counted.prompt_tokens,
        "simulated s": found["seconds"],
    }


def _real(taken: Sequence[Run]) -> dict[str, float]:
    latencies = [mean(times.ended - times.arrival for times in run.requests) for run in taken]
    return {"real s": median(run.seconds for run in taken), "mean latency s": median(latencies)}
