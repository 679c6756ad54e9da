"""simulations: the same arrivals under each policy and number of replicas; and what a terminal shows of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.arrivals import Arrival
from roseinfer.display.measured import Result
from roseinfer.display.number_text import significant
from roseinfer.display.text_table import Column, TextTable
from roseinfer.planning.definitions import PERCENTILE, PERCENTILES
from roseinfer.profiling.progress import OnProgress, Progress

from .cluster import Cluster
from .cost import Cost, FittedCost
from .metrics import TIMES, summary
from .replica import EngineSetting

SIMULATED = "the requests"
IN_SHORT = tuple((name, part) for name in ("ttft", "tpot", "e2e_latency") for part in ("p50", "p99"))
ASSUMPTIONS = (
    "Scheduler, block manager and prefix cache are the engine's own; only the model is missing.",
    "Every request gets exactly its output_len tokens: none ends early or is aborted. Prompts have nothing in common "
    "but their prefix.",
    "A step's tokens are there at its end, and a request that comes during a step can join the next one. Routing, the "
    "network and tokenizers take no time.",
    "A router knows the requests and tokens that each replica holds at that moment, and never moves a request.",
    "tail: seconds in which no request waits any more and places stay empty, which a better order can shorten.",
)
DEFINITIONS = (*(metric.text() for metric in TIMES), f"{PERCENTILE}.")


@dataclass(frozen=True, kw_only=True)
class Simulation(Result):
    """The results of simulated runs. rows: one for each policy, router and number of replicas.

    cost: that of the steps.
    """

    SHORT: ClassVar = (
        "policy",
        "router",
        "replicas",
        "ended",
        "output_tokens",
        "seconds",
        "tail_seconds",
        "tokens_per_second",
        "preemptions",
        "hit_rate",
    )

    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"cost": self.cost.to_dict()}

    def short(self) -> dict[str, Any]:
        """Return the short form, with only the kind of the cost."""
        return super().short() | {"cost": {"kind": self.cost.to_dict()["kind"]}}

    def short_row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row for the short line of JSON. Its times are in seconds."""
        times = {f"{name}_{stat}": row["times"][name][stat] for name, stat in IN_SHORT if row["times"].get(name)}
        return super().short_row(row) | times

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        return [self.throughput().text(width), self.times().text(width)]

    def notes(self) -> list[str]:
        fitted = [fit_note(self.cost)] if isinstance(self.cost, FittedCost) else []
        return [self.cost.about, *fitted, *ASSUMPTIONS, *DEFINITIONS]

    def throughput(self) -> TextTable:
        first = {(row["router"], row["replicas"]): row["seconds"] for row in reversed(self.rows)}
        later = Column(
            f"to {self.rows[0]['policy']}",
            lambda seconds: f"{seconds:+,.2f} s",
            of=lambda row: row["seconds"] - first[row["router"], row["replicas"]],
        )
        columns = [
            *self._keys(),
            Column("ended", "{:,}".format, of="ended"),
            Column("seconds", significant, of="seconds"),
            *([later] if len({row["policy"] for row in self.rows}) > 1 else []),
            Column("tail s", significant, of="tail_seconds"),
            Column("tokens/s", "{:,.0f}".format, of="tokens_per_second"),
            Column("steps", "{:,}".format, of="steps"),
            Column("rows a step", "{:.1f}".format, of="rows_per_step"),
            Column("preempted", "{:,}".format, of="preemptions"),
            Column("cache hits", "{:.1%}".format, of="hit_rate"),
            Column("busy, least to most", lambda busy: f"{min(busy):.0%} to {max(busy):.0%}", True, of="busy"),
        ]
        return TextTable.of_rows(columns, self.rows, keys=len(self._keys()))

    def times(self) -> TextTable:
        def in_ms(stat: str) -> Column:
            return Column(f"{stat} ms", lambda seconds: significant(1e3 * seconds), of=stat)

        stats = ("mean", *(f"p{p}" for p in PERCENTILES), "max")
        columns = [Column("time", of="time"), *self._keys(), *map(in_ms, stats)]
        rows = [
            row | row["times"][metric.name] | {"time": metric.name}
            for metric in TIMES
            for row in self.rows
            if metric.name in row["times"]
        ]
        return TextTable.of_rows(columns, rows, keys=1 + len(self._keys()))

    def _keys(self) -> list[Column]:
        """List the columns that tell rows apart: the router only where there are several."""
        has_routers = len({row["router"] for row in self.rows}) > 1
        routers = [Column("router", of="router")] if has_routers else []
        return [Column("policy", of="policy"), *routers, Column("replicas", of="replicas")]


def fit_note(cost: FittedCost) -> str:
    errors = sorted(map(abs, cost.errors))
    most = [max(values) for values in zip(*(s.work for s in cost.samples), strict=True)]
    return (
        f"Fitted to {len(cost.samples):,} steps of {len(errors)} kinds; the error of a kind of step is "
        f"{median(errors):.1%} in the middle and {errors[-1]:.1%} at most. A step costs "
        f"{significant(1e6 * cost.host[0])} us of host and {significant(1e6 * cost.device[0])} us of launches before "
        f"the first token. Larger steps than {most[0]} sequences, {most[2]:,} prompt tokens or {most[3]:,} tokens that "
        "decodes see are extrapolated."
    )


def simulations(
    arrivals: list[Arrival],
    setting: EngineSetting,
    cost: Cost,
    *,
    policies: Sequence[str],
    replicas: Sequence[int],
    routers: Sequence[str] = ("round_robin",),
    arguments: dict[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> Simulation:
    """Simulate the same arrivals under every policy, router and number of replicas.

    Raises ValueError as Cluster does.
    """
    settings = {name: replace(setting, scheduling_policy=name) for name in policies}
    rows: list[dict[str, Any]] = []
    num_runs = len(policies) * len(routers) * len(replicas)
    progress = Progress(on_progress, {SIMULATED: num_runs}, num_runs)
    for policy, router, num_replicas in product(policies, routers, replicas):
        progress.begin(f"{policy}, {router}, {counted(num_replicas, 'replica')}", SIMULATED)
        cluster = Cluster(settings[policy], cost, num_replicas, router)
        cluster.run(arrivals)
        rows.append({"policy": policy, "router": router, "replicas": num_replicas, **summary(cluster)})
    used = asdict(setting) | {"max_num_batched_tokens": setting.step_tokens}
    told = {"setting": used, "routers": list(routers), **(arguments or {})}
    return Simulation(arguments=told, cost=cost, rows=rows)
