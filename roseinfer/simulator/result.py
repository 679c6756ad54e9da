"""simulations: the same arrivals under each policy and number of replicas; and what a terminal shows of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.arrivals import Arrival, require_order
from roseinfer.display.measured import Result
from roseinfer.display.number_text import significant
from roseinfer.display.text_table import Column, TextTable
from roseinfer.planning.definitions import PERCENTILE, PERCENTILES
from roseinfer.profiling.progress import OnProgress, Progress

from .cluster import Cluster, check_router
from .cost import Cost, FittedCost, FloorCost
from .disaggregated import ASSUMPTIONS as DISAGGREGATED
from .disaggregated import DisaggregatedCluster
from .link import Link, tensor_parallel
from .metrics import TIMES, summary
from .replica import EngineSetting
from .shape import ClusterShape

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
SHARDED = (
    "Shapes such as 4x2: 4 replicas of 2 tensor-parallel shards, a GPU each, with twice the blocks and sequences. The "
    "memory that a shard saves on weights is not used."
)
DEFINITIONS = (*(metric.text() for metric in TIMES), f"{PERCENTILE}.")


@dataclass(frozen=True, kw_only=True)
class CostedResult(Result):
    """A result that depends on the cost of steps."""

    SHORT_FIELDS: ClassVar[tuple[str, ...]] = ("arguments", "cost")

    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"cost": self.cost.to_dict()}

    def short(self) -> dict[str, Any]:
        """Return the short form, with only the kind of the cost."""
        return super().short() | {"cost": {"kind": self.cost.to_dict()["kind"]}}


@dataclass(frozen=True, kw_only=True)
class Simulation(CostedResult):
    """The results of simulated runs. rows: one for each policy, router and shape of the cluster.

    is_partial: the last of them was interrupted, as by Ctrl-C, and has what had happened until then.
    simulated_per_second: requests, by the clock on the wall.
    """

    SHORT: ClassVar = (
        "policy",
        "router",
        "shape",
        "replicas",
        "ended",
        "output_tokens",
        "seconds",
        "tail_seconds",
        "tokens_per_second",
        "preemptions",
        "hit_rate",
    )

    SHORT_FIELDS: ClassVar = (*CostedResult.SHORT_FIELDS, "is_partial")

    link: Link | None = None
    is_partial: bool = False
    simulated_per_second: float = 0.0

    def short_row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row for the short line of JSON. Its times are in seconds."""
        times = {f"{name}_{stat}": row["times"][name][stat] for name, stat in IN_SHORT if row["times"].get(name)}
        return super().short_row(row) | times

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        return [self.throughput().text(width), self.times().text(width)]

    def notes(self) -> list[str]:
        fitted = [fit_note(self.cost)] if isinstance(self.cost, FittedCost) else []
        link = [f"Links between GPUs, assumed: {self.link.about()}."] if self.link else []
        notes = [self.cost.about, *fitted, *link, *ASSUMPTIONS, *DEFINITIONS]
        partial = ["PARTIAL: broken off. The last row has what had happened until then."] if self.is_partial else []
        if any(row["shards"] > 1 for row in self.rows):
            notes.append(SHARDED)
        if any(row["num_prefill"] for row in self.rows):
            notes += DISAGGREGATED
        speed = f"{self.simulated_per_second:,.0f} requests a second were simulated."
        return [*partial, *notes, speed]

    def throughput(self) -> TextTable:
        is_race = len({row["policy"] for row in self.rows}) > 1
        columns: list[Column | str] = [
            *self._key_columns(),
            Column("ended", lambda n: f"{n:,}"),
            Column("seconds", significant),
            *([Column(f"to {self.rows[0]['policy']}", lambda s: f"{s:+,.2f} s")] if is_race else []),
            Column("tail s", significant),
            Column("tokens/s", lambda x: f"{x:,.0f}"),
            Column("steps", lambda n: f"{n:,}"),
            Column("rows a step", lambda x: f"{x:.1f}"),
            Column("preempted", lambda n: f"{n:,}"),
            Column("cache hits", lambda x: f"{x:.1%}"),
            Column("busy, least to most", right=True),
        ]
        whole = self.rows[:-1] if self.is_partial else self.rows
        first = {(row["router"], row["shape"]): row["seconds"] for row in reversed(whole)}
        later = [row["seconds"] - first[row["router"], row["shape"]] for row in whole] + [None] * self.is_partial
        return TextTable.of(
            columns,
            [
                (
                    *self._keys(row),
                    row["ended"],
                    row["seconds"],
                    *([seconds_later] if is_race else []),
                    row["tail_seconds"],
                    row["tokens_per_second"],
                    row["steps"],
                    row["rows_per_step"],
                    row["preemptions"],
                    row["hit_rate"],
                    f"{min(row['busy']):.0%} to {max(row['busy']):.0%}",
                )
                for row, seconds_later in zip(self.rows, later, strict=True)
            ],
            keys=len(self._key_columns()),
        )

    def times(self) -> TextTable:
        shown = ("mean", *(f"p{p}" for p in PERCENTILES), "max")
        in_ms = [Column(f"{name} ms", lambda seconds: significant(1e3 * seconds)) for name in shown]
        return TextTable.of(
            ["time", *self._key_columns(), *in_ms],
            [
                (metric.name, *self._keys(row), *(times[part] for part in shown))
                for metric in TIMES
                for row in self.rows
                if (times := row["times"].get(metric.name))
            ],
            keys=1 + len(self._key_columns()),
        )

    def _key_columns(self) -> list[Column | str]:
        """List the columns that tell rows apart: the router only where there are several."""
        return ["policy", *(["router"] if self._has_routers else []), Column("replicas", right=True)]

    def _keys(self, row: dict[str, Any]) -> tuple[str, ...]:
        return (row["policy"], *([row["router"]] if self._has_routers else []), row["shape"])

    @property
    def _has_routers(self) -> bool:
        return len({row["router"] for row in self.rows}) > 1


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
    replicas: Sequence[int | str],
    routers: Sequence[str] = ("round_robin",),
    seed: int = 0,
    link: Link | None = None,
    arguments: dict[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> Simulation:
    """Simulate the same arrivals under every policy, router and shape. Ctrl-C ends it with a partial result.

    cost: of a step on one GPU. replicas: shapes as ClusterShape.of takes them, such as 8, "4x2" or "2:6"; the last two
    need a FloorCost and a link. seed: of the routers' random choices.

    Raises ValueError for a bad argument, before anything runs.
    """
    settings = {name: replace(setting, scheduling_policy=name) for name in policies}
    shapes = [ClusterShape.of(value) for value in replicas]
    for router in routers:
        check_router(router)
    for shape in shapes:
        check_cost(shape, cost, link)
    require_order(arrivals)
    setting.check_fits(arrivals)
    rows: list[dict[str, Any]] = []
    began, is_partial = perf_counter(), False
    num_runs = len(policies) * len(routers) * len(shapes)
    progress = Progress(on_progress, {SIMULATED: num_runs}, num_runs)
    for policy, router, shape in product(policies, routers, shapes):
        progress.begin(f"{policy}, {router}, {counted(shape.replicas, 'replica')}", SIMULATED)
        cluster = make_cluster(shape, settings[policy], cost, router, seed, link)
        try:
            cluster.run(arrivals)
        except KeyboardInterrupt:
            is_partial = True
        rows.append({"policy": policy, "router": router, "shape": shape.label, **asdict(shape), **summary(cluster)})
        if is_partial:
            break
    simulated = sum(row["ended"] for row in rows)
    used = asdict(setting) | {"max_num_batched_tokens": setting.step_tokens}
    told = {"setting": used, "routers": list(routers), "link": link and asdict(link), **(arguments or {})}
    return Simulation(
        arguments=told,
        cost=cost,
        link=link,
        rows=rows,
        is_partial=is_partial,
        simulated_per_second=simulated / (perf_counter() - began),
    )


def check_cost(shape: ClusterShape, cost: Cost, link: Link | None) -> None:
    """Raise ValueError for a shape whose GPUs send each other what the cost does not know, or over no link."""
    if shape.shards == 1 and not shape.num_prefill:
        return
    if not isinstance(cost, FloorCost):
        raise ValueError(f"replicas {shape.label}: needs a floor as its cost, which knows the bytes that GPUs send")
    if link is None:
        raise ValueError(f"replicas {shape.label}: needs a link between GPUs, whose bandwidth is to be given")
    if (most := cost.terms.most_shards) % shape.shards:
        raise ValueError(
            f"replicas {shape.label}: {shape.shards} shards must divide {most}, the greatest common divisor of the "
            "model's heads, KV heads and MLP width"
        )


def make_cluster(
    shape: ClusterShape, setting: EngineSetting, cost: Cost, router: str, seed: int, link: Link | None
) -> Cluster:
    """Make a cluster of that shape. setting, cost: of one GPU."""
    if shape.shards == 1 and not shape.num_prefill:
        return Cluster(setting, cost, shape.replicas, router, seed)
    assert isinstance(cost, FloorCost) and link, "check_cost was called"
    if shape.num_prefill:
        apart: dict[str, Any] = {"num_prefill": shape.num_prefill, "kv_bytes": cost.terms.kv_bytes, "link": link}
        return DisaggregatedCluster(setting, cost, shape.replicas, router, seed, **apart)
    shards = shape.shards
    larger = replace(setting, num_blocks=shards * setting.num_blocks, max_num_seqs=shards * setting.max_num_seqs)
    return Cluster(larger, tensor_parallel(cost, shards, link), shape.replicas, router, seed)
