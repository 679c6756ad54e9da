"""How several runs become one line; what the figures mean is in roseinfer.bench.scheduler.definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from .run import ServerRun

MS = 1e3


@dataclass(frozen=True)
class Stat:
    """A metric over several runs, in its unit. values: one a run."""

    metric: str
    unit: str
    values: tuple[float, ...]

    @property
    def p50(self) -> float:
        return median(self.values)

    @property
    def mean(self) -> float:
        return mean(self.values)


def summarize(runs: Sequence[ServerRun]) -> list[Stat]:
    """Compute the posts' summary, in their order. TPOT is left out when no request has a second token."""
    of_each: list[tuple[str, str, Callable[[ServerRun], float | None]]] = [
        ("Decode time", "s", lambda run: run.decode_seconds),
        ("Total time", "s", lambda run: run.total_seconds),
        ("Throughput(completion,decode)", "tokens/s", lambda run: _rate(run.completion_tokens, run.decode_seconds)),
        ("Throughput(completion,total)", "tokens/s", lambda run: _rate(run.completion_tokens, run.total_seconds)),
        ("TTFT", "ms", lambda run: MS * median(request.ttft for request in run.requests)),
        ("TPOT", "ms/token", _tpot_ms),
        ("Latency", "ms", lambda run: MS * median(request.latency for request in run.requests)),
    ]
    stats = []
    for metric, unit, value in of_each:
        values: list[Any] = [value(run) for run in runs]
        if None not in values:
            stats.append(Stat(metric, unit, tuple(values)))
    return stats


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds else None


def _tpot_ms(run: ServerRun) -> float | None:
    values = [request.tpot for request in run.requests if request.tpot is not None]
    return MS * median(values) if values else None
