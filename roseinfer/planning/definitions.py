"""The only definition of each time of a request: its formula, its other names, and how it is computed.

`roseinfer bench online --help` prints it, and every recorded run has it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roseinfer.engine.metrics import SequenceTimes

PERCENTILES = (50, 90, 99)
PERCENTILE = (
    "p50, p90, p99: the smallest of the values that at least 50, 90, 99 in a hundred of them do not exceed (nearest "
    "rank), so always one that occurred. p99 of fewer than 100 values is the largest of them"
)
TIMESTAMPS = {
    "arrival": "the request comes; in a benchmark by the list of arrivals, even if the engine is busy then",
    "first_scheduled": "the scheduler begins to put together the first step that computes a part of it",
    "scheduled": "of each token, the scheduler begins to put together the step that makes it",
    "inference_begin": "of each token, that step is handed over to be run",
    "inference_end": "of each token, that step's tokens are on the host",
    "finish": "of each token, its sequence has it; text is made afterwards",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One time of a request or a token, and how it follows from the timestamps.

    per: what there is a value of, "request" or "token". formula: in TIMESTAMPS, and finish[i] for the i-th token. post:
    what post 003 says of it. values: gets those of one sequence, in seconds, none where a timestamp is not known (yet).
    """

    name: str
    per: str
    formula: str
    meaning: str
    post: str
    values: Callable[[SequenceTimes], list[float]]

    def text(self) -> str:
        post = f". Post 003: {self.post}" if self.post else ""
        return f"{self.name} (per {self.per}) = {self.formula}: {self.meaning}{post}."


def _since_arrival(times: SequenceTimes, token: int) -> list[float]:
    return [times.steps[token].finish - times.arrival] if times.steps else []


def _in_step(end: str, begin: str) -> Callable[[SequenceTimes], list[float]]:
    def known(times: SequenceTimes) -> list[float]:
        lengths = (getattr(step, end) - getattr(step, begin) for step in times.steps)
        return [seconds for seconds in lengths if not isnan(seconds)]

    return known


def _waiting_time(times: SequenceTimes) -> list[float]:
    return [] if isnan(times.first_scheduled) else [times.first_scheduled - times.arrival]


def _tpot(times: SequenceTimes) -> list[float]:
    steps = times.steps
    return [(steps[-1].finish - steps[0].finish) / (len(steps) - 1)] if len(steps) > 1 else []


def _itl(times: SequenceTimes) -> list[float]:
    return [after.finish - before.finish for before, after in pairwise(times.steps)]


METRICS = (
    Metric(
        "waiting_time",
        "request",
        "first_scheduled - arrival",
        "in the queue before its first step; what a preempted request waits later is not in it",
        "written the other way round, arrival_ts - first_scheduled_ts, which is never above 0",
        _waiting_time,
    ),
    Metric(
        "scheduling_time",
        "token",
        "inference_begin - scheduled",
        "the host's part of a step, before it runs",
        "the same, as scheduling2inference",
        _in_step("inference_begin", "scheduled"),
    ),
    Metric(
        "inference_time",
        "token",
        "inference_end - inference_begin",
        "a step as it runs: its inputs are prepared, the model computes, tokens are chosen and read",
        "the same",
        _in_step("inference_end", "inference_begin"),
    ),
    Metric(
        "latency",
        "token",
        "finish - scheduled",
        "the whole step of a token; neither the queue nor earlier steps",
        "the same; it is of one token, and what others call latency is e2e_latency",
        _in_step("finish", "scheduled"),
    ),
    Metric(
        "ttft",
        "request",
        "finish[0] - arrival",
        "time to first token: the queue and the whole prompt",
        "",
        lambda times: _since_arrival(times, 0),
    ),
    Metric(
        "tpot",
        "request",
        "(finish[-1] - finish[0]) / (tokens - 1)",
        "time per output token: the mean gap between a request's tokens, none for a single one",
        "",
        _tpot,
    ),
    Metric(
        "itl",
        "token",
        "finish[i] - finish[i-1]",
        "inter-token latency: each gap of its own, a stall behind another request's prompt too",
        "",
        _itl,
    ),
    Metric(
        "e2e_latency",
        "request",
        "finish[-1] - arrival",
        "from its arrival to its last token",
        "",
        lambda times: _since_arrival(times, -1),
    ),
)
METRICS_BY_NAME = {metric.name: metric for metric in METRICS}


def summary(requests: Iterable[SequenceTimes], metrics: Iterable[Metric] = METRICS) -> dict[str, dict[str, float]]:
    """Return each metric over all requests: count, mean, p50, p90, p99, max, in seconds, if it has any value."""
    requests = list(requests)
    found = {}
    for metric in metrics:
        if values := [value for times in requests for value in metric.values(times)]:
            found[metric.name] = {"count": len(values), "mean": sum(values) / len(values), **percentiles(values)}
    return found


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max of at least one value."""
    ordered = sorted(values)
    return {f"p{p}": percentile(ordered, p) for p in PERCENTILES} | {"max": ordered[-1]}


def percentile(ordered: Sequence[float], p: int) -> float:
    """Return the percentile of at least one value in order: see PERCENTILE."""
    return ordered[max(0, ceil(p * len(ordered) / 100) - 1)]


def definitions() -> dict[str, str]:
    """Return the timestamps, metrics and percentiles of this module in words, for a recorded run."""
    stamps = {name: f"timestamp: {meaning}" for name, meaning in TIMESTAMPS.items()}
    return stamps | {metric.name: metric.text() for metric in METRICS} | {"percentiles": PERCENTILE}


def definitions_text() -> str:
    """Return the definitions as lines for a terminal."""
    fill = textwrap.TextWrapper(110, initial_indent="  ", subsequent_indent="      ").fill
    stamps = [fill(f"{name}: {meaning}.") for name, meaning in TIMESTAMPS.items()]
    return "\n".join([*stamps, *(fill(metric.text()) for metric in METRICS), fill(f"{PERCENTILE}.")])
