"""ServingResult, what a load found out about a server, and ContestResult, of servers under the same load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column, TextTable
from roseinfer.planning.definitions import PERCENTILE, PERCENTILES, percentiles

from ..provenance import where
from ..race_result import grouped, range_text
from ..verdict import explanation, ratio_text, runs_text, spread, verdict
from .client import CANCELLED, COMPLETE, FAILED, REFUSED, Outcome
from .plan import Planned

MS, MIB = 1e3, 2**20
DEFINITIONS = {
    "ttft": "from a request's arrival, by the plan, to the first chunk; what the client is late is in it",
    "itl": "between two chunks of an answer; a chunk has more than one token where the server or the client was busy",
    "tpot": "from the first chunk of an answer to the last one, over its tokens less one",
    "e2e_latency": "from a request's arrival to its last chunk, or to its whole body where that is not streamed",
    "goodput": "complete answers a second whose TTFT and TPOT are within the limits",
    "throughput": "from the first arrival to the last end",
    "percentiles": PERCENTILE,
}
FIGURES = ("tokens_per_second", "goodput")
TIMES = {"ttft": ("p50", "p99"), "itl": ("p50", "p99")}


def _ms(seconds: float) -> str:
    return f"{MS * seconds:,.1f}"


@dataclass(frozen=True)
class Limits:
    """The most milliseconds of TTFT and of TPOT that a good answer may have."""

    ttft_ms: float
    itl_ms: float

    def are_met(self, outcome: Outcome) -> bool:
        ttft, tpot = ttft_of(outcome), tpot_of(outcome)
        within = (ttft is None or MS * ttft <= self.ttft_ms) and (tpot is None or MS * tpot <= self.itl_ms)
        return outcome.how == COMPLETE and within


def ttft_of(outcome: Outcome) -> float | None:
    return outcome.chunks[0] - outcome.arrival if outcome.chunks else None


def tpot_of(outcome: Outcome) -> float | None:
    if outcome.num_tokens < 2 or not outcome.chunks:
        return None
    return (outcome.chunks[-1] - outcome.chunks[0]) / (outcome.num_tokens - 1)


@dataclass(frozen=True, kw_only=True)
class ServingResult(MachineResult):
    """What a load found out about a server.

    rows: one, of the whole load: how many requests ended how, rates a second, and times in seconds. samples: every
    Outcome, without its text. definitions: what each number means. tokens: what a comparison with the offline engine
    found, None where it was not asked for. memory: pairs of seconds and the server's resident bytes then; [] where the
    server does not tell them.
    """

    SHORT: ClassVar = ("requests", COMPLETE, "requests_per_second", "tokens_per_second", "goodput", "ttft", "itl")

    definitions: dict[str, str] = field(default_factory=DEFINITIONS.copy)
    tokens: str | None
    memory: list[tuple[float, int]]

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        [row] = self.rows
        counts = ("requests", COMPLETE, CANCELLED, REFUSED, FAILED)
        rates = {"requests_per_second": "req/s", "tokens_per_second": "tok/s", "goodput": "good req/s"}
        columns = [Column(name, "{:,}".format, of=name) for name in counts]
        columns += [Column(title, "{:,.1f}".format, of=name) for name, title in rates.items()]
        yield TextTable.of_rows(columns, [row]).text(width)
        stats = [Column(stat, _ms, of=stat) for stat in (*(f"p{p}" for p in PERCENTILES), "max")]
        names = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e_latency": "e2e_latency"}
        times = [row[name] | {"time": title} for name, title in names.items() if row[name]]
        yield TextTable.of_rows([Column("ms", of="time"), *stats], times).text(width)

    def notes(self) -> list[str]:
        a = self.arguments
        way = "streamed" if a["stream"] else "whole"
        notes = [
            f"{a['model']} at {a['url']}: {arrivals_text(a)}, answers {way}; "
            f"prompts of {range_text(a['prompt_len'])} tokens, outputs of {range_text(a['output_len'])}. Load from "
            f"{where(self)}.",
            good_text(a),
        ]
        if wrong := self.rows[0]["wrongly_refused"]:
            notes.append(f"{counted(wrong, 'well-formed request', 'was/were')} refused, such as by a full queue (429).")
        if self.memory:
            sizes = [nbytes / MIB for _, nbytes in self.memory]
            told = f"{sizes[0]:,.0f} MiB before, {sizes[-1]:,.0f} after, {max(sizes):,.0f} at most"
            notes.append(f"Memory of the server: {told}.")
        return notes + ([f"Tokens: {self.tokens}."] if self.tokens else [])


@dataclass(frozen=True, kw_only=True)
class ContestResult(MachineResult):
    """rows: one for each server, medians over its runs. samples: a row of each run."""

    SHORT: ClassVar = ("name", *FIGURES, "ttft_p50", "itl_p50")
    MISSING: ClassVar = "-"
    COLUMNS: ClassVar = (
        Column("server", of="name"),
        Column("requests", "{:,}".format, of="requests"),
        Column("tok/s", "{:,.1f}".format, of="tokens_per_second"),
        Column("good req/s", "{:,.1f}".format, of="goodput"),
        *(
            Column(f"{time.upper()} {stat} ms", _ms, of=f"{time}_{stat}")
            for time, stats in TIMES.items()
            for stat in stats
        ),
    )

    definitions: dict[str, str] = field(default_factory=DEFINITIONS.copy)

    def notes(self) -> list[str]:
        a = self.arguments
        requests = f"{runs_text(a['repeats'])} of {self.rows[0]['requests']} requests"
        notes = [
            f"{a['model']} in {a['precision']}, {requests}: {arrivals_text(a)}; prompts of "
            f"{range_text(a['prompt_len'])} tokens, outputs of {range_text(a['output_len'])}; {a['slots']} run at a "
            f"time. {where(self)}.",
            good_text(a),
        ]
        if len(self.rows) > 1:
            notes += [self.ratio(figure) for figure in FIGURES]
            notes.append(explanation(a["repeats"]))
        return notes

    def ratio(self, figure: str) -> str:
        """Compare the first server with the second one in a sentence."""
        first, second = self.rows
        runs = {row["name"]: [one[figure] for one in self.samples if one["name"] == row["name"]] for row in self.rows}
        name = "tokens per second" if figure == "tokens_per_second" else "good requests per second"
        if not second[figure]:
            return f"{first['name']} over {second['name']}, {name}: no ratio, as {second['name']} has none."
        said = verdict(runs[second["name"]], runs[first["name"]], "more", "fewer")
        ratio = ratio_text(first[figure] / second[figure], said)
        return f"{first['name']} over {second['name']}, {name}: {ratio} ({said})."


def contest_rows(samples: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a row for each server: medians over its runs."""
    rows = []
    for (name,), own in grouped(samples, "name").items():
        row: dict[str, Any] = {"name": name, "requests": own[0]["requests"]}
        for figure in FIGURES:
            row |= spread(figure, [one[figure] for one in own])
        for time, stats in TIMES.items():
            for stat in stats:
                found = [one[time][stat] for one in own if one[time]]
                row[f"{time}_{stat}"] = median(found) if found else None
        rows.append(row)
    return rows


def row_of(plan: Sequence[Planned], outcomes: Sequence[Outcome], limits: Limits) -> dict[str, Any]:
    ended = Counter(one.how for one in outcomes)
    complete = [one for one in outcomes if one.how == COMPLETE]
    seconds = max(one.ended for one in outcomes) - outcomes[0].arrival
    gaps = [after - before for one in complete for before, after in pairwise(one.chunks)]
    return {
        "requests": len(plan),
        **{how: ended[how] for how in (COMPLETE, CANCELLED, REFUSED, FAILED)},
        "malformed": sum(one.malformed is not None for one in plan),
        "wrongly_refused": sum(
            one.how == REFUSED and sent.malformed is None for sent, one in zip(plan, outcomes, strict=True)
        ),
        "seconds": seconds,
        "requests_per_second": len(complete) / seconds,
        "tokens_per_second": sum(one.num_tokens for one in complete) / seconds,
        "goodput": sum(map(limits.are_met, outcomes)) / seconds,
        "ttft": stats_of([ttft_of(one) for one in complete]),
        "tpot": stats_of([tpot_of(one) for one in complete]),
        "itl": stats_of(gaps),
        "e2e_latency": stats_of([one.ended - one.arrival for one in complete]),
    }


def stats_of(values: Iterable[float | None]) -> dict[str, float] | None:
    """Compute p50, p90, p99 and max; return None when there is no value."""
    found = [value for value in values if value is not None]
    return percentiles(found) if found else None


def arrivals_text(arguments: Mapping[str, Any]) -> str:
    """Say how requests come: by the clock, or from clients that wait for their answers."""
    if clients := arguments["clients"]:
        return f"closed loop of {counted(clients, 'client')}"
    return f"{arguments['rate']:g} requests/s for {arguments['seconds']:g} s, open loop"


def good_text(arguments: Mapping[str, Any]) -> str:
    return f"Good: TTFT within {arguments['ttft_ms']:g} ms and TPOT within {arguments['itl_ms']:g} ms."
