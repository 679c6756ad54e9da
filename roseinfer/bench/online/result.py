"""OnlineResult: what `online` measured, as tables for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.display.text_table import Column, TextTable
from roseinfer.planning.definitions import METRICS

from ..race_result import RaceResult, Row, against_hf, grouped, range_text
from ..settings import HF, ONLINE
from ..verdict import ratio_text, spread

MS = 1e3
IN_SHORT = (("ttft", "p50"), ("itl", "p99"))
STATS = ("p50", "p90", "p99", "max")
# Shown where they are not 0 for everyone.
COUNTS = {
    "preemptions": Column("preempted", "{:,.0f}".format, of="preemptions"),
    # Of the prompts' tokens, those found in the prefix cache.
    "prefix_cache_hit_rate": Column("hits", "{:.0%}".format, of="prefix_cache_hit_rate"),
}


def rows_of(samples: Sequence[Row]) -> list[Row]:
    """Make one row per load, contender and budget: medians over its runs, also of each metric's own statistics.

    vs_hf and its verdict: requests a second against transformers with the same budget; None where that did not run.
    partial: none of its runs was complete, so the row shows what there was at the interrupt.
    """
    by_key = grouped(samples, "load", "budget", "name")
    runs = {key: [s for s in own if s["complete"]] or own for key, own in by_key.items()}
    rows = []
    for (load, budget, name), own in runs.items():
        speeds = [sample["requests_per_second"] for sample in own]
        theirs = [s["requests_per_second"] for s in runs.get((load, budget, ONLINE[HF]), ()) if s["complete"]]
        comparable = name != ONLINE[HF] and own[0]["complete"]
        rows.append(
            {
                "load": load,
                "name": name,
                "budget": budget,
                "max_num_seqs": own[0]["max_num_seqs"],
                "runs": len(own),
                "partial": not own[0]["complete"],
                "finished": own[0]["finished"],
                "num_requests": own[0]["num_requests"],
                **spread("requests_per_second", speeds),
                "tokens_per_second": median(sample["tokens_per_second"] for sample in own),
                **against_hf(speeds, theirs if comparable else None),
                "metrics": _medians([sample["metrics"] for sample in own]),
                "preemptions": _median_of([sample["counters"].get("preemptions") for sample in own]),
                "prefix_cache_hit_rate": _median_of([s["counters"].get("prefix_cache_hit_rate") for s in own]),
            }
        )
    return rows


def _medians(summaries: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {stat: median(one[name][stat] for one in summaries if name in one) for stat in found}
        for name, found in summaries[0].items()
    }


def _median_of(values: Sequence[Any]) -> float | None:
    return None if None in values else median(values)


@dataclass(frozen=True, kw_only=True)
class OnlineResult(RaceResult):
    """What `online` measured.

    rows: see rows_of. samples: every run in the order in which they were made, with all raw times in seconds after its
    beginning, and steps as roseinfer.engine.step.StepRecord has them. definitions: what each time means. capacity: the
    rate of which loads are shares. tokens: for each contender "equal", or where they first parted. interrupted: where
    Ctrl-C ended it.
    """

    SHORT: ClassVar = (
        "load",
        "name",
        "budget",
        "requests_per_second",
        "requests_per_second_min",
        "requests_per_second_max",
    )

    SHORT_FIELDS: ClassVar = (*RaceResult.SHORT_FIELDS, "interrupted")

    definitions: dict[str, str]
    capacity: dict[str, Any] | None
    tokens: dict[str, str]
    interrupted: str | None

    def short_row(self, row: Row) -> Row:
        """Return the row for the short line of JSON. Times are in seconds."""
        times = {f"{name}_{stat}": row["metrics"][name][stat] for name, stat in IN_SHORT if name in row["metrics"]}
        return super().short_row(row) | times

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        """Return a table for each load; long: also one of every metric."""
        parts = [] if self.interrupted is None else [f"PARTIAL RESULT, interrupted: {self.interrupted}"]
        for (load,), rows in grouped(self.rows, "load").items():
            is_choice = len(self.arguments["budgets"]) > 1 and not all(row["partial"] for row in rows)
            best = f"\n{_best(rows)}" if is_choice else ""
            parts.append(f"{self._title(load)}\n{_table(rows).text(width)}{best}")
            if long:
                parts.append(_long_table(rows).text(width))
        return parts

    def _title(self, load: str) -> str:
        a = self.arguments
        if a["trace"]:
            return f"{counted(a['num_requests'], 'request')} of {a['trace']}"
        prefix = f" after {a['prefix_len']} that all share" if a["prefix_len"] else ""
        burst = f", {a['burst']} at a time" if a["burst"] > 1 else ""
        requests = counted(a["num_requests"], "request")
        return (
            f"{requests}, prompts of {range_text(a['prompt_lens'])} tokens{prefix}, outputs of "
            f"{range_text(a['output_lens'])}, {load}{burst}; times in ms"
        )

    def sentences(self) -> Iterator[str]:
        a = self.arguments
        yield (
            f"Weights are in {a['dtype']}. req/s: from the first arrival to the last token; below its capacity a "
            "contender shows the rate of the arrivals. latency: of a step, as post 003 has it. `roseinfer bench online "
            "--help` defines every time; the JSON has them, too."
        )
        smaller = [str(budget) for budget in a["budgets"] if budget < min(a["max_num_seqs"], a["num_requests"])]
        if smaller:
            yield (
                f"max_num_seqs is {a['max_num_seqs']}, and with a budget below it ({', '.join(smaller)}) as small as "
                "the budget: the engine refuses a budget that not every sequence has a token of."
            )
        if c := self.capacity:
            yield (
                f"Capacity: {c['requests_per_second']:.3g} requests a second, {c['name']} with a budget of "
                f"{c['budget']} when all come at once."
            )
        parted = ", ".join(f"{name} ({verdict})" for name, verdict in self.tokens.items() if verdict != "equal")
        if self.tokens:
            yield "Tokens equal the reference's" + (f", but for near ties: {parted}." if parted else ".")


def _table(rows: Sequence[Row]) -> TextTable:
    shown = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("itl", "p99"), ("itl", "max"), ("latency", "p50"))
    columns = [
        Column("contender", of=_named),
        Column("budget", of="budget"),
        Column("seqs", of="max_num_seqs"),
        Column("req/s", right=True, of=_speed),
        Column("tok/s", "{:,.0f}".format, of="tokens_per_second"),
        Column("× HF", right=True, of=_ratio),
        *(_time(name, stat) for name, stat in shown),
        *(column for name, column in COUNTS.items() if any(row[name] for row in rows)),
    ]
    return TextTable.of_rows(columns, rows, missing="-", keys=2)


def _time(metric: str, stat: str) -> Column:
    """Make the column of a statistic of a metric, in ms."""
    name = metric.upper() if metric != "latency" else metric
    return Column(f"{name} {stat}", "{:,.1f}".format, True, lambda row: _ms(row, metric, stat))


def _best(rows: Sequence[Row]) -> str:
    """Name the best budget of each contender, as one budget need not suit all."""
    whole = sorted((row for row in rows if not row["partial"]), key=lambda row: row["requests_per_second"])
    best = {row["name"]: row for row in whole}  # of each name the last one
    names = [name for name in dict.fromkeys(row["name"] for row in rows) if name in best]
    said = [f"{name} {best[name]['budget']} ({best[name]['requests_per_second']:.2f} req/s)" for name in names]
    return f"most requests a second: {', '.join(said)}"


def _long_table(rows: Sequence[Row]) -> TextTable:
    columns = [Column("contender"), Column("budget"), Column("metric")]
    columns += [Column(stat, "{:,.2f}".format, right=True) for stat in STATS]
    lines = [
        (_named(row), row["budget"], metric.name, *(_ms(row, metric.name, stat) for stat in STATS))
        for row in rows
        for metric in METRICS
        if metric.name in row["metrics"]
    ]
    return TextTable.of(columns, lines)


def _named(row: Row) -> str:
    partial = f" (partial: {row['finished']} of {row['num_requests']})" if row["partial"] else ""
    return row["name"] + partial


def _speed(row: Row) -> str:
    middle, low, high = (row[f"requests_per_second{end}"] for end in ("", "_min", "_max"))
    return f"{middle:.2f}" + (f" ({low:.2f}..{high:.2f})" if row["runs"] > 1 else "")


def _ratio(row: Row) -> str | None:
    return None if row["vs_hf"] is None else ratio_text(row["vs_hf"], row["verdict"])


def _ms(row: Row, metric: str, stat: str) -> float | None:
    found = row["metrics"].get(metric)
    return None if found is None else MS * found[stat]
