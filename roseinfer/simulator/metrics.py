"""The figures of a run: throughput, times of requests as definitions.py defines them, and how busy replicas were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from roseinfer.planning import definitions

from .cluster import Cluster
from .replica import Replica, SimulatedRequest

# A simulated step is one piece: what of it is the host's and what the device's has no times of its own.
TIMES = tuple(m for m in definitions.METRICS if m.name in ("waiting_time", "ttft", "itl", "tpot", "e2e_latency"))


def request_times(requests: Iterable[SimulatedRequest]) -> dict[str, dict[str, float]]:
    """Summarise TIMES over the requests that have ended."""
    return definitions.summary([r.times for r in requests if r.times.has_ended], TIMES)


def summary(cluster: Cluster) -> dict[str, Any]:
    """Summarise all that has happened so far. seconds: from the first arrival to the last token.

    tail_seconds: those in which no request waited any more, so that free slots stay empty. busy: per replica, the share
    of the seconds that it spent in steps.
    """
    ended = [r for r in cluster.requests if r.times.has_ended]
    begin = cluster.requests[0].arrival.seconds if cluster.requests else 0.0
    end = max((r.end for r in ended), default=begin)
    starts = [r.times.first_scheduled for r in ended]
    last_start = max(starts, default=begin)
    seconds, tokens = end - begin, sum(r.arrival.output_len for r in ended)
    replicas = cluster.replicas
    steps, rows = sum(r.num_steps for r in replicas), sum(r.num_rows for r in replicas)
    return {
        "requests": len(cluster.requests),
        "ended": len(ended),
        "output_tokens": tokens,
        "seconds": seconds,
        "requests_per_second": per(len(ended), seconds),
        "tokens_per_second": per(tokens, seconds),
        "tail_seconds": end - last_start,
        "steps": steps,
        "rows_per_step": per(rows, steps),
        "preemptions": sum(r.scheduler.num_preemptions for r in replicas),
        "hit_rate": hit_rate(replicas),
        "host_share": per(sum(r.host for r in replicas), sum(r.host + r.device for r in replicas)),
        "busy": [per(r.host + r.device, seconds) for r in replicas],
        "times": request_times(ended),
    }


def hit_rate(replicas: Iterable[Replica]) -> float | None:
    """Compute the share of joining sequences' tokens that a prefix cache had; None without a prefix cache."""
    caches = [cache for r in replicas if (cache := r.scheduler.blocks.prefix_cache)]
    return per(sum(c.num_found_tokens for c in caches), sum(c.num_asked_tokens for c in caches)) if caches else None


def per(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0
