"""Checkers of lesson 20: a server, the quality of a load, an open loop, and admission."""

from __future__ import annotations

import asyncio
from collections import namedtuple
from collections.abc import Callable
from random import Random
from typing import Any

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Case, Comparison, draw, inputs
from ..exercises.exercise import register
from .server_checks import require_server
from .virtual_clock import START, VirtualLoop

Seconds = list[float]

# 20.1

register("20.1", require_server)

# 20.2

# A request of a load, with times in seconds; first and last are None where no token came.
Record = namedtuple("Record", ("arrival", "first", "last", "tokens", "how"))

FIRST, LAST = "min(r.arrival for r in records)", "max(r.last for r in records if r.last is not None)"
GAPS = "r.last - r.first <= tpot_limit * (r.tokens - 1)"
QUALITY_MISTAKES = {
    "throughput": {
        "records come in any order: find the first arrival": {FIRST: "records[0].arrival or math.inf"},
        "only complete answers count": {"return len(complete)": "return len(records)"},
        "until the last token of any request, also of one that failed": {LAST: "max(r.last for r in complete)"},
    },
    "goodput": {
        "an answer that failed or was refused is not good, however fast it began": {
            "is_good, complete": "is_good, (r for r in records if r.first is not None)"
        },
        "a good answer keeps both limits": {f" and {GAPS}": ""},
        "n tokens have n - 1 gaps between them": {"(r.tokens - 1)": "r.tokens"},
    },
    "attained": {
        "of all requests: one that was refused or failed is not good": {
            "num_good / len(records)": "num_good / len(complete)"
        },
    },
    "p99_ttft": {
        "nearest rank: the smallest value that at least 99 in a hundred do not exceed": {
            "math.ceil(0.99 * len(ttfts)) - 1": "int(0.99 * (len(ttfts) - 1))"
        },
    },
}


def _draw_record(rng: Random, begin: float, parts: int, how: str) -> Record:
    arrival = begin + rng.randint(0, 40) / 8
    if how == "refused" or (how == "failed" and rng.random() < 0.5):
        return Record(arrival, None, None, 0, how)
    tokens, first = rng.choice((1, 2, 3, 5, 9, 30)), arrival + rng.randint(1, parts) / parts
    return Record(arrival, first, first + (tokens - 1) * rng.randint(1, 4) / 8, tokens, how)


def _draw_records(rng: Random) -> Case:
    """Draw a load. Of 100 requests all are complete, where rounding by hand goes wrong."""
    count, begin = rng.choice((0, 1, 2, 3, 5, 99, 250)), rng.choice((0.0, 2.0, 100.0))
    parts = rng.choice((8, 8192))  # of a second: of many TTFTs, few are the same
    kinds = ("complete",) if count == 99 else ("complete", "complete", "complete", "refused", "failed")
    records = [_draw_record(rng, begin, parts, how) for how in ("complete", *rng.choices(kinds, k=count))]
    return rng.sample(records, len(records)), rng.randint(2, 8) / 8, rng.randint(1, 4) / 8


LOADS = [([Record(0.0, 0.5, 1.5, 3, "complete")], 0.5, 0.5), *draw(_draw_records, 80)]
QUALITY = as_solved_by_name("20.2", QUALITY_MISTAKES)
register("20.2", Comparison(LOADS, QUALITY, inputs("records", "ttft_limit", "tpot_limit")))

# 20.3

WAIT, ALL = "await asyncio.sleep(due - now())", "(one(number) for number in range(len(arrivals)))"
LOOP_MISTAKES = {
    "sent": {
        "a request is sent at its time, whether or not earlier ones have their answers": {
            f"await asyncio.gather(*{ALL})": "[await one(number) for number in range(len(arrivals))]"
        },
        "each request waits for its time": {WAIT: "pass"},
    },
    "latencies": {
        "a latency counts from the time at which the request was due: what the client is late is in it": {
            WAIT: f"{WAIT}\n        due = now()"
        },
    },
}


def _sends_and_latencies(
    answer: Callable[..., Any], arrivals: Seconds, works: Seconds, answers: Seconds
) -> dict[str, Any]:
    """Run an answer by a virtual clock. "sent": the request and its time, for each. "latencies": what it returns.

    works: seconds that the client itself is busy with each request when it sends it. answers: seconds that the server
    takes.
    """
    loop = VirtualLoop()
    sent: list[tuple[int, float]] = []

    async def send(number: int) -> None:
        sent.append((number, loop.time() - START))
        loop.clock.now += works[number]
        await asyncio.sleep(answers[number])

    latencies = loop.run(answer(arrivals, send, loop.time))
    return {"sent": sorted(sent), "latencies": latencies}


def _draw_load(rng: Random) -> Case:
    """Draw a load in quarters of a second, in which answers end long after the last request is sent.

    Some loads have more requests than a client would hold back by a limit of its own.
    """
    count = rng.choice((1, 2, 3, 4, 5, 5, 300))
    arrivals = sorted(quarter / 4 for quarter in rng.sample(range(8 * count), count))
    works = rng.choices((0.0, 0.0, 0.0, 1.0, 2.5), k=count)
    answers = [2000.0 + rng.randint(0, 64) / 4 + number / 64 for number in range(count)]
    return arrivals, works, answers


ARRIVALS = [([3.0], [0.0], [1.0]), ([0.5, 0.5], [0.0, 0.0], [2.0, 1.0]), *draw(_draw_load)]
SENT = as_solved_by_name("20.3", LOOP_MISTAKES, call=_sends_and_latencies, asyncio=asyncio)
BUSY = inputs("arrivals", "client busy", "server takes")
register("20.3", Comparison(ARRIVALS, SENT, BUSY, _sends_and_latencies))

# 20.4

ENDS_NEEDED, MEAN_GAP = "(num_queued + 1 - num_free)", "(ends[-1] - ends[0]) / (len(ends) - 1)"
ADMIT_MISTAKES = {
    "the request itself needs a slot, too: one more has to end": {ENDS_NEEDED: "(num_queued - num_free)"},
    "n ends have n - 1 gaps between them": {"(len(ends) - 1)": "len(ends)"},
    "the mean gap, not the last one": {MEAN_GAP: "ends[-1] - ends[-2]"},
    "a wait equal to the limit is allowed": {"<= limit": "< limit"},
    "with fewer than two ends nothing is known: let the request in": {"return True": "return num_queued < num_free"},
    "a slot for it is free: let it in, however slow recent answers were": {ENDS_NEEDED: f"max{ENDS_NEEDED[:-1]}, 1)"},
}


def _draw_state(rng: Random) -> Case:
    latest = rng.choice((64, 64, 2, 0))  # quarters of a second: answers may end at the same time
    ends = sorted(100.0 + rng.randint(0, latest) / 4 for _ in range(rng.choice((0, 1, 2, 3, 5, 9, 41))))
    queued, free = rng.randint(0, rng.choice((2, 9, 500))), rng.choice((0, 0, 0, 1, 3, 9))
    wait = (queued + 1 - free) * (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else 1.0
    near = round(4 * wait * rng.choice((0.5, 0.8, 1.0, 1.0, 1.2, 2.0))) / 4  # where mistakes decide otherwise
    return queued, free, ends, max(0.25, near)


STATES = [(0, 0, [1.0, 2.0], 1.0), (0, 0, [1.0, 2.0], 0.5), *draw(_draw_state, 150)]
ADMITTED = as_solved("20.4", ADMIT_MISTAKES)
register("20.4", Comparison(STATES, ADMITTED, inputs("num_queued", "num_free", "ends", "limit")))
