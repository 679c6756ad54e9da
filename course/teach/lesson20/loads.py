"""Loads on a server from a notebook: a closed loop, rates that rise, both beside each other; and where time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import pandas as pd

from roseinfer.arguments import counted
from roseinfer.bench.serving.client import COMPLETE, Outcome, Target, load
from roseinfer.bench.serving.plan import Planned, plan_of
from roseinfer.bench.serving.result import Limits, row_of
from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.display.table import Table
from roseinfer.llm.vocabulary import Vocabulary
from roseinfer.models import ModelLoadError, load_tokenizer

from ..measure.progress_bar import progress_bar
from ..views.rows_table import table
from .server import LessonServer, in_a_thread

PROMPT_LENS, OUTPUT_LENS = (16, 48), (16, 48)
LIMITS = Limits(ttft_ms=250, itl_ms=25)
MS = 1e3
FORMATS = {
    "answers/s": "{:,.1f}",
    "good/s": "{:,.1f}",
    "tok/s": "{:,.0f}",
    "TTFT p50 ms": "{:,.0f}",
    "TTFT p99 ms": "{:,.0f}",
    "ITL p50 ms": "{:,.1f}",
}


@dataclass(frozen=True)
class Measured:
    """A measured load. row: see bench.serving.result.row_of. parts: seconds of the mean answer, by where they went."""

    plan: Sequence[Planned]
    outcomes: Sequence[Outcome]
    row: dict[str, Any]
    parts: dict[str, float]

    @property
    def answers_per_second(self) -> float:
        return float(self.row["requests_per_second"])

    @property
    def p99_ttft_ms(self) -> float:
        """99th percentile of the time to first token of complete answers in ms, from when they were due."""
        return MS * float(self.row["ttft"]["p99"])

    @property
    def queue_percent(self) -> float:
        """Share of the mean latency that is before the first step, in percent."""
        return 100 * self.parts[QUEUE] / sum(self.parts.values())

    def columns(self) -> dict[str, Any]:
        """Return the columns of FORMATS."""
        row = self.row
        return {
            "answers/s": row["requests_per_second"],
            "good/s": row["goodput"],
            "tok/s": row["tokens_per_second"],
            "TTFT p50 ms": MS * row["ttft"]["p50"],
            "TTFT p99 ms": MS * row["ttft"]["p99"],
            "ITL p50 ms": MS * row["itl"]["p50"],
        }


def drawn_plan(
    server: LessonServer,
    count: int,
    rate: float = 1000.0,
    *,
    prompt_lens: tuple[int, int] = PROMPT_LENS,
    output_lens: tuple[int, int] = OUTPUT_LENS,
    seed: int = 0,
) -> Sequence[Planned]:
    """Draw `count` requests, `rate` a second, of random tokens that the server's model knows."""
    return plan_of(
        rate,
        count / rate,
        vocab_size=server.vocab_size,
        prompt_lens=prompt_lens,
        output_lens=output_lens,
        seed=seed,
    )


def run_load(
    server: LessonServer, count: int, *, rate: float | None = None, clients: int | None = None, seed: int = 0
) -> Measured:
    """Send `count` requests and wait for their answers: by the clock at `rate`, or from so many clients that wait.

    Raises RuntimeError for an answer that is not complete.
    """
    plan = drawn_plan(server, count, rate or 1.0, seed=seed)
    before = server.seconds_so_far()
    outcomes = in_a_thread(load(Target(server.url, server.model), plan, clients=clients))
    if failed := [one for one in outcomes if one.how != COMPLETE]:
        raise RuntimeError(f"{len(failed)} of {count} requests did not complete: {failed[0].how}, {failed[0].error}")
    server.wait_until_idle()
    after = server.seconds_so_far()
    spent = {name: (value - before.get(name, 0.0)) / count for name, value in after.items()}
    return Measured(
        plan, outcomes, row_of(plan, outcomes, LIMITS), parts_of(spent, outcomes, token_seconds(server.model))
    )


QUEUE, PREFILL, DECODE, DETOKENISE, HTTP = "queue", "prefill", "decode", "detokenise", "client and HTTP"
PARTS = {QUEUE: PALETTE[3], PREFILL: PALETTE[0], DECODE: PALETTE[2], DETOKENISE: PALETTE[6], HTTP: PALETTE[4]}


def parts_of(spent: Mapping[str, float], outcomes: Sequence[Outcome], token_seconds: float) -> dict[str, float]:
    """Split the seconds of the mean answer into the parts where they went.

    spent: the server's sums, per request. token_seconds: to detokenise one token; a step does so for each of its rows,
    one after another. HTTP's part is what the client has seen beside all that, from when a request was due; it includes
    the client's own time.
    """
    queue, ttft, whole = (
        spent[name]
        for name in ("request_queue_time_seconds", "time_to_first_token_seconds", "e2e_request_latency_seconds")
    )
    seen = sum(one.ended - one.arrival for one in outcomes) / len(outcomes)
    decode, seconds = whole - ttft, max(one.ended for one in outcomes) - outcomes[0].arrival
    rows = max(1.0, decode * len(outcomes) / seconds)  # of a step, as a mean
    tokens = sum(one.num_tokens for one in outcomes) / len(outcomes)
    detokenise = min(decode, token_seconds * rows * tokens)
    return {
        QUEUE: queue,
        PREFILL: ttft - queue,
        DECODE: decode - detokenise,
        DETOKENISE: detokenise,
        HTTP: max(0.0, seen - whole),
    }


@cache
def token_seconds(model: str) -> float:
    """Measure the seconds to detokenise a token on this machine; 0 for a model without a tokenizer."""
    try:
        vocabulary = Vocabulary(load_tokenizer(model))
    except ModelLoadError:
        return 0.0
    tokens = list(range(10, 210))
    detokenizer = vocabulary.detokenizer([1], (), False, True)
    began = perf_counter()
    for token in tokens:
        detokenizer.add(token)
    return (perf_counter() - began) / len(tokens)


def load_clients(server: LessonServer, *clients: int, count: int = 48) -> Loads:
    """Measure a closed loop with each number of clients; each sends its next request when its last answer has ended."""
    loads = {}
    with progress_bar("loads", len(clients)) as done:
        for number in clients:
            loads[f"{number} {'client' if number == 1 else 'clients'}"] = run_load(
                server, count, clients=number, seed=number
            )
            done()
    return Loads(loads, "load")


SHARES = (0.4, 0.7, 0.9, 1.1, 1.5)
SWEEP_SECONDS = 2.0


def sweep_rates(server: LessonServer, capacity: float, shares: Sequence[float] = SHARES) -> Loads:
    """Load the server by the clock at rates that are shares of `capacity`, its answers per second when it is full."""
    loads = {}
    with progress_bar("loads", len(shares)) as done:
        for number, share in enumerate(shares):
            rate = share * capacity
            count = max(8, round(rate * SWEEP_SECONDS))
            loads[f"{share:.0%} of capacity"] = run_load(server, count, rate=rate, seed=100 + number)
            done()
    return Loads(loads, "arrivals")


@dataclass(frozen=True, repr=False)
class Loads:
    """Loads by name, as a table: text/plain has their names, and that every answer was complete."""

    loads: dict[str, Measured]
    what: str

    def __getitem__(self, name: str) -> Measured:
        return self.loads[name]

    @property
    def last(self) -> Measured:
        return list(self.loads.values())[-1]

    def table(self) -> Table:
        rows = [{self.what: name, "every answer": "complete"} | one.columns() for name, one in self.loads.items()]
        note = (
            f"prompts and outputs of {PROMPT_LENS[0]} to {PROMPT_LENS[1]} tokens, times as the client sees them. Good: "
            f"TTFT within {LIMITS.ttft_ms:g} ms, and mean gap between tokens within {LIMITS.itl_ms:g} ms"
        )
        return table(rows, list(FORMATS), note=note, formats=FORMATS)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


def draw_knee(loads: Loads) -> Chart:
    """Chart answers and good answers per second over the arrival rate, and the parts of the mean answer's latency."""
    import altair as alt

    rates = [
        {
            "arrivals": len(one.plan) / max(one.plan[-1].seconds, 1e-9),
            "kind": kind,
            "per second": one.row[key],
            "load": name,
        }
        for name, one in loads.loads.items()
        for kind, key in (("answered", "requests_per_second"), ("good", "goodput"))
    ]
    colours = alt.Scale(domain=["answered", "good"], range=[PALETTE[0], PALETTE[2]])
    curves = alt.Chart(csv_data(pd.DataFrame(rates).round(4))).mark_line(point=True).encode(
        x=alt.X("arrivals:Q", title="requests that arrive per second"),
        y=alt.Y("per second:Q", title="per second"),
        color=alt.Color("kind:N", title=None, scale=colours, legend=alt.Legend(orient="top")),
        tooltip=["load:N", "kind:N", alt.Tooltip("per second:Q", format=".1f")],
    )  # fmt: skip
    parts = [
        {"load": name, "part": part, "ms": MS * seconds, "order": order}
        for name, one in loads.loads.items()
        for order, (part, seconds) in enumerate(one.parts.items())
    ]
    scale = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    bars = alt.Chart(csv_data(pd.DataFrame(parts).round(4))).mark_bar().encode(
        x=alt.X("ms:Q", title="ms of the mean answer"),
        y=alt.Y("load:N", title=None, sort=list(loads.loads)),
        color=alt.Color("part:N", title=None, scale=scale, legend=alt.Legend(orient="top", columns=len(PARTS))),
        order="order:Q",
        tooltip=["load:N", "part:N", alt.Tooltip("ms:Q", format=".1f")],
    )  # fmt: skip
    curves = curves.properties(width=PAGE_WIDTH - 80, height=180)
    bars = bars.properties(width=PAGE_WIDTH - 160, height=28 * len(loads.loads))
    both = alt.vconcat(curves, bars).resolve_scale(color="independent")
    rates_told = counted(len(loads.loads), "arrival rate")
    text = f"answers and good answers per second, and the parts of the mean latency, at {rates_told}"
    told = [
        f"{name}: {one.answers_per_second:.1f} answered, {one.row['goodput']:.1f} good, "
        + ", ".join(f"{part} {MS * seconds:.0f} ms" for part, seconds in one.parts.items())
        for name, one in loads.loads.items()
    ]
    return Chart(both, text, f"{text}; {'; '.join(told)}")


def load_rate(server: LessonServer, rate: float, seconds: float = SWEEP_SECONDS) -> Loads:
    """Load the server by the clock at one rate."""
    with progress_bar("loads", 1):
        return Loads({f"{rate:g} per second": run_load(server, round(rate * seconds), rate=rate, seed=300)}, "arrivals")


def compare_loops(server: LessonServer, capacity: float, clients: int = 16) -> Loads:
    """Measure the same overload twice: requests by the clock at 1.5 times the capacity, and from clients that wait."""
    rate = 1.5 * capacity
    count = max(8, round(rate * SWEEP_SECONDS))
    with progress_bar("loads", 2) as done:
        opened = run_load(server, count, rate=rate, seed=200)
        done()
        closed = run_load(server, count, clients=clients, seed=201)
        done()
    return Loads({"open loop": opened, f"closed loop, {clients} clients": closed}, "load")
