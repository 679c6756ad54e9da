"""Validation: real runs of the engine against simulations of the same arrivals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import count
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

from roseinfer.arguments import require_count
from roseinfer.arrivals import Arrival, Range, at_once, poisson
from roseinfer.display.number_text import significant
from roseinfer.display.text_table import Column, TextTable
from roseinfer.models import Model
from roseinfer.profiling.clock import Clock
from roseinfer.profiling.progress import OnProgress, Progress

from .cluster import Cluster
from .cost import FittedCost, StepSample, fit
from .measure import RealRun, StepMeasure, real_engine, real_run
from .metrics import request_times
from .replica import EngineSetting, SimulatedRequest
from .result import CostedResult, fit_note

LOAD = 0.8  # of what the engine can do, for arrivals one after another
REAL = "a real run"
TARGET = 0.15  # of the throughput, either way

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Validation(CostedResult):
    """rows: for each kind of arrivals the figures of each real run, their medians, and those of the simulation."""

    SHORT: ClassVar = ("arrivals", "measured", "simulated", "errors")

    SHORT_FIELDS: ClassVar = (*CostedResult.SHORT_FIELDS, "worst_error")

    cost: FittedCost

    @property
    def worst_error(self) -> float:
        """Error of the throughput that is furthest off."""
        return max((row["errors"]["tokens_per_second"] for row in self.rows), key=abs)

    @property
    def is_within(self) -> bool:
        """Whether every throughput is within TARGET."""
        return abs(self.worst_error) <= TARGET

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"worst_error": self.worst_error, "target": TARGET}

    def short(self) -> dict[str, Any]:
        return super().short() | {"target": TARGET}

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        columns: list[Column | str] = [
            "arrivals",
            "figure",
            Column("real runs", significant),
            Column("simulated", significant),
            Column("error", lambda x: f"{x:+.1%}"),
        ]
        table = TextTable.of(
            columns,
            [
                (row["arrivals"], name.replace("_", " "), real, row["simulated"][name], row["errors"][name])
                for row in self.rows
                for name, real in row["measured"].items()
            ],
        )
        return [table.text(width)]

    def notes(self) -> list[str]:
        verdict = "within" if self.is_within else "NOT within"
        a = self.arguments
        return [
            f"Throughput is {verdict} {TARGET:.0%}: {self.worst_error:+.1%} at worst. Real runs: the median of "
            f"{a['repeats']}, in turn with the steps that the cost is fitted to.",
            fit_note(self.cost),
        ]


def validate(
    model: Model,
    setting: EngineSetting,
    about: str,
    *,
    num_requests: int = 64,
    prompt_lens: Range = (16, 256),
    output_lens: Range = (16, 128),
    repeats: int = 3,
    seed: int = 0,
    clock: Clock = perf_counter,
    on_progress: OnProgress | None = None,
) -> Validation:
    """Compare simulations with real runs of requests that come all at once, and by a Poisson process.

    The process runs at LOAD of the throughput of the first kind; a round for warm-up comes before. Raises ValueError
    for a bad argument.
    """
    require_count("repeats", repeats, at_least=1)
    sizes: dict[str, Any] = {"prompt_lens": prompt_lens, "output_lens": output_lens, "seed": seed}
    together = at_once(num_requests, **sizes)
    setting.check_fits(together)

    measured, rng = StepMeasure(model, setting.max_num_seqs, setting.block_size, clock), Random(seed)
    planned = measured.work(1 + repeats) | {REAL: 2 + 2 * repeats}
    progress = Progress(on_progress, planned, sum(planned.values()))
    engine, seeds = real_engine(model, setting), count(seed)

    def run(arrivals: list[Arrival], repeat: int = -1) -> RealRun:
        """Run the arrivals with other prompts each time, so that the prefix cache has none of them."""
        progress.begin("warm-up" if repeat < 0 else f"round {repeat + 1}", REAL, repeat=repeat)
        return real_run(engine, arrivals, next(seeds), clock)

    measured.round(-1, rng, progress.begin)
    run(together)
    rate = LOAD * num_requests / run(together).seconds
    kinds = {"at once": together, f"Poisson, {LOAD:.0%} load": poisson(num_requests, rate, **sizes)}
    samples: list[StepSample] = []
    runs: dict[str, list[RealRun]] = {name: [] for name in kinds}
    for repeat in range(repeats):
        samples += measured.round(repeat, rng, progress.begin)
        for name, arrivals in kinds.items():
            runs[name].append(run(arrivals, repeat))
    cost = fit(about, samples)
    rows = [compared(name, runs[name], simulated(arrivals, setting, cost)) for name, arrivals in kinds.items()]
    told = {
        "setting": asdict(setting),
        "num_requests": num_requests,
        **sizes,
        "rate": rate,
        "repeats": repeats,
    }
    return Validation(arguments=told, cost=cost, rows=rows)


def simulated(arrivals: list[Arrival], setting: EngineSetting, cost: FittedCost) -> Figures:
    cluster = Cluster(setting, cost)
    cluster.run(arrivals)
    (replica,) = cluster.replicas
    return figures(cluster.requests, replica.num_steps, replica.host + replica.device)


def figures(requests: list[SimulatedRequest], num_steps: int, step_seconds: float) -> Figures:
    seconds = max(r.end for r in requests) - requests[0].arrival.seconds
    times = request_times(requests)
    return {
        "tokens_per_second": sum(r.arrival.output_len for r in requests) / seconds,
        "steps": num_steps,
        "ms_a_step": 1e3 * step_seconds / num_steps,
        "p50_ttft_ms": 1e3 * times["ttft"]["p50"],
        "p50_e2e_latency_ms": 1e3 * times["e2e_latency"]["p50"],
    }


def compared(name: str, runs: list[RealRun], predicted: Figures) -> dict[str, Any]:
    all_runs = [figures(run.requests, len(run.steps), sum(s.host + s.device for s in run.steps)) for run in runs]
    real = {figure: median(of_run[figure] for of_run in all_runs) for figure in predicted}
    return {
        "arrivals": name,
        "runs": all_runs,
        "measured": real,
        "simulated": predicted,
        "errors": {figure: predicted[figure] / real[figure] - 1 for figure in predicted},
    }
