"""Loads on a server from a notebook: a closed loop, rates that rise; and where time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roseinfer.arguments import counted
from roseinfer.bench.serving.client import COMPLETE, Outcome, Target, load
from roseinfer.bench.serving.plan import Planned, plan_of
from roseinfer.bench.serving.result import Limits, row_of
from roseinfer.display.table import Table

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
    return Measured(plan, outcomes, row_of(plan, outcomes, LIMITS), parts_of(spent, outcomes))


QUEUE, PREFILL, DECODE, HTTP = "queue", "prefill", "decode", "client and HTTP"


def parts_of(spent: Mapping[str, float], outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Split the seconds of the mean answer into the parts where they went.

    spent: the server's sums, per request. HTTP's part is what the client has seen beside all that, from when a request
    was due; it includes the client's own time.
    """
    queue, ttft, whole = (
        spent[name]
        for name in ("request_queue_time_seconds", "time_to_first_token_seconds", "e2e_request_latency_seconds")
    )
    seen = sum(one.ended - one.arrival for one in outcomes) / len(outcomes)
    return {QUEUE: queue, PREFILL: ttft - queue, DECODE: whole - ttft, HTTP: max(0.0, seen - whole)}


def measured(server: LessonServer, what: str, wanted: Mapping[str, dict[str, Any]]) -> Loads:
    """Measure loads by name, one after another. wanted: the arguments of run_load for each."""
    loads = {}
    with progress_bar("loads", len(wanted)) as done:
        for name, arguments in wanted.items():
            loads[name] = run_load(server, **arguments)
            done()
    return Loads(loads, what)


def load_clients(server: LessonServer, *clients: int, each: int = 24) -> Loads:
    """Measure a closed loop with each number of clients; each sends its next request when its last answer has ended.

    each: requests of a client, so that many clients, who are served side by side, take as long as one.
    """
    wanted = {
        counted(number, "client"): {"count": each * number, "clients": number, "seed": number} for number in clients
    }
    return measured(server, "load", wanted)


SHARES = (0.4, 0.7, 0.9, 1.1, 1.5)
SWEEP_SECONDS = 2.0


def by_the_clock(rate: float, seed: int) -> dict[str, Any]:
    """Return the arguments of run_load for SWEEP_SECONDS of requests at a rate."""
    return {"count": max(8, round(rate * SWEEP_SECONDS)), "rate": rate, "seed": seed}


def sweep_rates(server: LessonServer, capacity: float, shares: Sequence[float] = SHARES) -> Loads:
    """Load the server by the clock at rates that are shares of `capacity`, its answers per second when it is full."""
    wanted = {
        f"{share:.0%} of capacity": by_the_clock(share * capacity, 100 + number) for number, share in enumerate(shares)
    }
    return measured(server, "arrivals", wanted)


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


def load_rate(server: LessonServer, rate: float) -> Loads:
    """Load the server by the clock at one rate."""
    return measured(server, "arrivals", {f"{rate:g} per second": by_the_clock(rate, 300)})
