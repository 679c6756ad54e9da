"""race_orders: scheduling policies on the same requests, in the simulator and on real engines, pool by pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from statistics import mean, median
from time import perf_counter
from typing import Any

import pandas as pd

from roseinfer.arrivals import Arrival
from roseinfer.bench.interleave import interleaved
from roseinfer.bench.verdict import OVERLAP, verdict
from roseinfer.display.table import Table
from roseinfer.display.view import View
from roseinfer.engine.policies import Policy
from roseinfer.models import Model
from roseinfer.profiling.clock import Clock
from roseinfer.simulator import Cluster, Cost, EngineSetting, FittedCost, StepWork, fit, step_samples
from roseinfer.simulator.measure import CACHED, CUT, PROMPTS, RealRun, real_engine, real_run
from roseinfer.simulator.metrics import summary

from ..measure.progress_bar import progress_bar
from ..views.said import Said

RUNS = 3
TARGET = 0.15  # of a simulation: how far its seconds may be off, either way
EXACT = ["pool", "policy", "steps", "rows a step", "preempted", "prompt tokens computed"]
FORMATS = {"rows a step": "{:.1f}", "simulated s": "{:.3f}", "real s": "{:.3f}", "mean latency s": "{:.3f}"}

Policies = Mapping[str, str | Callable[[], Policy]]  # by the name in the table; a class makes one policy per engine


@dataclass(frozen=True, repr=False)
class OrderRace(View):
    """Results of race_orders. text/plain has the exact columns; times, and sentences on them, are in the live view."""

    table: Table
    said: Said

    def __repr__(self) -> str:
        return repr(self.table)

    def speed(self, pool: str, policy: str) -> float:
        """Return how many times as fast as the first policy this one is on real engines.

        Raises KeyError for a pool or a policy that was not in the race.
        """
        seconds = {row["policy"]: row["real s"] for row in self.table.df.to_dict("records") if row["pool"] == pool}
        here = seconds[policy]
        return float(next(iter(seconds.values())) / here)

    def to_html(self) -> str:
        return self.table.to_html() + self.said.to_html()


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
    pools: Mapping[str, EngineSetting],
    arrivals: Sequence[Arrival],
    policies: Policies,
    cost: Cost,
    clock: Clock = perf_counter,
) -> OrderRace:
    """Make one row per pool and policy, and compare each policy with the first.

    The engines are warm. Each run has new prompts, so that none is in the prefix cache.
    """
    rows: list[dict[str, Any]] = []
    sentences: list[str] = []
    with progress_bar("runs of the engine", len(pools) * len(policies) * RUNS) as done:
        for pool, setting in pools.items():
            settings = {name: replace(setting, scheduling_policy=made(policy)) for name, policy in policies.items()}
            seeds = {name: count() for name in policies}
            engines = {name: real_engine(model, own) for name, own in settings.items()}

            def run(name: str, engines: Any = engines, seeds: Any = seeds) -> RealRun:
                result = real_run(engines[name], list(arrivals), next(seeds[name]), clock)
                done()
                return result

            taken = interleaved({name: partial(run, name) for name in policies}, RUNS)
            for name, own in settings.items():
                rows.append({"pool": pool, "policy": name} | _simulated(own, arrivals, cost))
                rows[-1] |= _real(taken[name])
            sentences += _sentences(pool, rows[-len(policies) :], taken)
    sentences.append(_errors(rows))
    note = f"real: the median of {RUNS} interleaved runs, on engines that are warm"
    table = Table(
        pd.DataFrame(rows),
        exact=EXACT,
        live=list(FORMATS)[1:],
        formats=FORMATS,
        note=note,
        title=f"{len(arrivals)} requests, simulated and for real",
    )
    return OrderRace(table, Said("which order is faster", tuple(sentences)))


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


def _real(taken: Sequence[RealRun]) -> dict[str, float]:
    latencies = [mean(r.end - r.arrival.seconds for r in run.requests) for run in taken]
    return {"real s": median(run.seconds for run in taken), "mean latency s": median(latencies)}


def _sentences(pool: str, rows: Sequence[dict[str, Any]], taken: Mapping[str, Sequence[RealRun]]) -> list[str]:
    """Write one sentence for each policy but the first: its steps and seconds compared with the first."""
    first, *others = rows
    speeds = {name: [1 / run.seconds for run in own] for name, own in taken.items()}
    sentences = []
    for row in others:
        said = verdict(speeds[first["policy"]], speeds[row["policy"]])
        seconds = f"{compared(row['real s'], first['real s'], 'seconds')}, {said}"
        if said == OVERLAP:
            seconds = "no difference in time that is larger than the spread of the runs"
        steps = compared(row["steps"], first["steps"], "steps")
        sentences.append(f"**{pool} pool, {row['policy']}**, compared with {first['policy']}: {steps}; {seconds}.")
    return sentences


def compared(here: float, there: float, unit: str) -> str:
    """Compare here with there in words: "12% fewer steps"."""
    fewer, what, equal = ("less", "time", "as much") if unit == "seconds" else ("fewer", unit, "as many")
    share = f"{abs(here / there - 1):.0%}"
    return f"{equal} {what}" if share == "0%" else f"{share} {fewer if here < there else 'more'} {what}"


def _errors(rows: Sequence[dict[str, Any]]) -> str:
    """Say how far the simulated seconds are from the real ones."""
    errors = [row["simulated s"] / row["real s"] - 1 for row in rows]
    told = f"Simulated times are {min(errors):+.0%} to {max(errors):+.0%} off the real ones."
    if max(map(abs, errors)) <= TARGET:
        return told
    return (
        f"{told} The numbers of steps are the same, so the fitted cost of a step is off, or this machine's speed has "
        "changed since the fit. Compare orders by their steps, and trust a share of time only where it is near the "
        "share of steps."
    )
