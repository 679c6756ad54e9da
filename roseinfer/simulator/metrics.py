"""What a run was like: its throughput, the times of its requests, and how busy its replicas were.

Definitions, in seconds. waiting: from arrival to the first step that computes some of a request. TTFT: from arrival to
the first token. ITL: between two tokens of a request. TPOT: their mean, of each request with two tokens or more.
latency: from arrival to the last token. Waiting and queueing are part of TTFT and latency. p90 of n values is the
smallest that at least 0.9 n of them do not exceed (nearest rank): always a value that occurred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from .cluster import Cluster
from .replica import Replica, SimulatedRequest

PERCENTILES = (50, 90, 99)
TIMES = ("waiting", "ttft", "itl", "tpot", "latency")

Distribution = dict[str, float]


def request_times(requests: Iterable[SimulatedRequest]) -> dict[str, list[float]]:
    """TIMES of those that have ended, without itl."""
    times: dict[str, list[float]] = {name: [] for name in TIMES if name != "itl"}
    for r in requests:
        if r.finish is None:
            continue
        came = r.arrival.seconds
        times["waiting"].append(r.first_scheduled - came)
        times["ttft"].append(r.first_token - came)
        times["latency"].append(r.finish - came)
        if r.arrival.output_len > 1:
            times["tpot"].append((r.finish - r.first_token) / (r.arrival.output_len - 1))
    return times


def distribution(counts: Mapping[float, int]) -> Distribution | None:
    """mean, p50, p90, p99 and most of values that occurred so often; None where there are none."""
    total = sum(counts.values())
    if not total:
        return None
    values = sorted(counts)
    found: Distribution = {"mean": sum(value * counts[value] for value in values) / total}
    ranks = {f"p{p}": ceil(p * total / 100) for p in PERCENTILES}
    seen, at = 0, iter(values)
    for name, rank in ranks.items():
        while seen < rank:
            value = next(at)
            seen += counts[value]
        found[name] = value
    return found | {"most": values[-1]}


def summary(cluster: Cluster) -> dict[str, Any]:
    """Of all that has happened so far. seconds: from the first arrival to the last token. tail_seconds: of these, the
    ones in which nobody waited any more: places that become free stay empty. busy: of each replica, the share of the
    seconds that it spent in steps."""
    ended = [r for r in cluster.requests if r.finish is not None]
    begin = cluster.requests[0].arrival.seconds if cluster.requests else 0.0
    end = max((r.finish for r in ended), default=begin)
    last_start = max((r.first_scheduled for r in ended), default=begin)
    seconds, tokens = end - begin, sum(r.arrival.output_len for r in ended)
    replicas = cluster.replicas
    steps, rows = sum(r.num_steps for r in replicas), sum(r.num_rows for r in replicas)
    gaps: Counter[float] = Counter()
    for replica in replicas:
        gaps.update(replica.gaps)
    times = request_times(ended)
    return {
        "requests": len(cluster.requests), "ended": len(ended), "output_tokens": tokens, "seconds": seconds,
        "requests_per_second": per(len(ended), seconds), "tokens_per_second": per(tokens, seconds),
        "tail_seconds": end - last_start, "steps": steps, "rows_per_step": per(rows, steps),
        "preemptions": sum(r.scheduler.num_preemptions for r in replicas), "hit_rate": hit_rate(replicas),
        "host_share": per(sum(r.host for r in replicas), sum(r.host + r.device for r in replicas)),
        "busy": [per(r.host + r.device, seconds) for r in replicas],
        "times": {name: distribution(gaps if name == "itl" else Counter(times[name])) for name in TIMES},
    }  # fmt: skip


def hit_rate(replicas: Iterable[Replica]) -> float | None:
    """Of the tokens of all sequences that joined, the share that a prefix cache had; None without one."""
    caches = [cache for r in replicas if (cache := r.scheduler.blocks.prefix_cache)]
    return per(sum(c.num_found_tokens for c in caches), sum(c.num_asked_tokens for c in caches)) if caches else None


def per(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0
