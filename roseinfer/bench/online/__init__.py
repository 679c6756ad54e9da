"""Requests that come by the clock: engines on the same weights and the same arrivals, in turn.

- online(model, ...) -> OnlineResult: throughput against latency over token budgets, with raw samples and definitions
- chunks(model, ...) -> ChunksResult: what a long prompt does to those that decode, with and without chunks
- Workload: how many requests, how long, and when they come
- serve(engine, work): one run of an Engine by its clock
- latency_chart(result): the curves, alive in JupyterLab
"""

from .chart import latency_chart
from .chunks import ChunksResult, chunks
from .race import BUDGETS, CONTENDERS, online
from .result import OnlineResult
from .serve import OnlineRun, serve
from .workload import Workload

__all__ = [
    "BUDGETS",
    "CONTENDERS",
    "ChunksResult",
    "OnlineResult",
    "OnlineRun",
    "Workload",
    "chunks",
    "latency_chart",
    "online",
    "serve",
]
