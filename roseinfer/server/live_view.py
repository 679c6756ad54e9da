"""What the page shows of the engine: /live."""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter
from typing import Any

from roseinfer.planning.definitions import percentile

from .async_engine import AsyncEngine
from .latencies import Histogram

MOST_REQUESTS = 32  # that are listed
MS = 1e3


def live_view(engine: AsyncEngine) -> dict[str, Any]:
    """Return what the page shows of the engine. `seconds` is a clock's, so that the page can make rates of counts.

    Times are in ms, as percentiles of the last values; None before any.
    """
    streams = list(engine.streams)
    requests = [
        {
            "prompt_tokens": stream.num_prompt_tokens,
            "new_tokens": stream.num_tokens,
            "most_tokens": sum(one.seq.params.most_tokens for r in stream.requests for one in r.samples),
        }
        for stream in streams[:MOST_REQUESTS]
    ]
    return asdict(engine.state) | {
        "status": engine.status,
        "seconds": perf_counter(),
        "requests": requests,
        "num_requests": len(streams),
        "refused": engine.num_refused,
        "ttft_ms": percentiles(engine.latencies.ttft),
        "itl_ms": percentiles(engine.latencies.itl),
    }


def percentiles(values: Histogram) -> dict[str, float] | None:
    recent = sorted(values.recent.copy())
    return {f"p{p}": MS * percentile(recent, p) for p in (50, 99)} if recent else None
