"""Requests that come by the clock: engines on the same weights and the same arrivals, in turn.

- online(setting) -> OnlineResult: throughput against latency over token budgets, with raw samples and definitions
- chunks(setting) -> ChunksResult: what a long prompt does to those that decode, with and without chunks
- serve(engine, work): one run of an Engine by its clock
- latency_chart(result): the curves, alive in JupyterLab
"""

from .chart import latency_chart
from .chunks import ChunksResult, chunks
from .race import online
from .result import OnlineResult
from .serve import serve

__all__ = [
    "ChunksResult",
    "OnlineResult",
    "chunks",
    "latency_chart",
    "online",
    "serve",
]
