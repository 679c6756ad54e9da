"""Traces and queries that the tests of traces share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from roseinfer.profiling import span

STEP = "roseinfer.decode_step_sessions.total"
BUILD = "roseinfer.decode_step_sessions.build_batched_past"
FORWARD = "roseinfer.model.forward"
APPEND = "roseinfer.kv.append_token"

# As the post prints them, blank lines and all.
IN_SPAN = """
WITH win AS (
  SELECT ts AS t0, ts + dur AS t1
  FROM slice
  WHERE name='{span}' AND cat='user_annotation'
  ORDER BY ts LIMIT 1
)
"""
OPS = """SELECT name, COUNT(*) n, SUM(dur)/1e6 total_ms, AVG(dur)/1e3 avg_us
FROM slice, win
WHERE ts>=win.t0 AND ts<win.t1 AND name LIKE 'aten::%'
GROUP BY name
ORDER BY total_ms DESC
LIMIT 25;
"""
NAMED_OPS = """SELECT name, COUNT(*) n, SUM(dur)/1e6 total_ms
FROM slice, win
WHERE ts>=win.t0 AND ts<win.t1
  AND name IN ({ops})
GROUP BY name
ORDER BY total_ms DESC;
"""
OVERVIEW = """
SELECT cat, name, COUNT(*) n, SUM(dur)/1e6 total_ms, AVG(dur)/1e6 avg_ms
FROM slice
WHERE name LIKE 'roseinfer.%'
  AND cat IN ('user_annotation','gpu_user_annotation')
GROUP BY cat, name
ORDER BY total_ms DESC;
"""
ALLOCATIONS = "'aten::cat','aten::zeros','aten::zeros_like','aten::empty','aten::empty_like','aten::copy_'"
VIEWS = "'aten::slice','aten::select','aten::copy_','aten::as_strided'"
POST_QUERIES = {
    "ops in build": IN_SPAN.format(span=BUILD) + OPS + "\n",
    "named ops in build": IN_SPAN.format(span=BUILD) + NAMED_OPS.format(ops=ALLOCATIONS) + "\n",
    "overview": OVERVIEW,
    "ops in append": IN_SPAN.format(span=APPEND) + OPS,
    "named ops in append": IN_SPAN.format(span=APPEND) + NAMED_OPS.format(ops=VIEWS),
}


def toy_step() -> Callable[[], None]:
    """A toy decode step with the course's span names: 4 copies in build, 3 in append."""
    cache = torch.zeros(4, 6, 8)

    @torch.inference_mode()
    def step() -> None:
        with span(STEP):
            with span(BUILD):
                batch = torch.zeros(4, 6, 8)
                for row in range(4):
                    batch[row].copy_(cache[row])
            with span(FORWARD):
                hidden = batch.tanh()
            with span(APPEND):
                for row in range(3):
                    cache[row, 0].copy_(hidden[row, 0])

    return step


def event(
    name: str, ts: float, dur: float, cat: str = "user_annotation", pid: int | str = 1, tid: int | str = 1, **args: Any
) -> dict[str, Any]:
    """Times in microseconds, as in a file."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def two_gpu_steps() -> dict[str, Any]:
    """Two steps of 100 us: build 10..40, forward 40..90 with a nested part, so 20 us a step are unlabelled."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}},
        event("PyTorch Profiler (0)", 0, 400, cat="Trace", pid="Spans", tid="PyTorch Profiler"),
    ]
    for start in (1000.125, 1200.125):
        events += [
            event(FORWARD, start + 40, 50),  # files are not always in time order
            event(STEP, start, 100),
            event(BUILD, start + 10, 30),
            event("roseinfer.model.attention", start + 45, 20),
            event("aten::copy_", start + 12, 4, cat="cpu_op"),
            event("aten::addmm", start + 50, 8, cat="cpu_op", shape=[2, 3]),
            event(FORWARD, start + 55, 40, cat="gpu_user_annotation", pid=0, tid=7),
            event("gemm_kernel", start + 55, 30, cat="kernel", pid=0, tid=7),
            event("Memcpy HtoD", start + 88, 7, cat="gpu_memcpy", pid=0, tid=7),
        ]
    return {"schemaVersion": 1, "traceEvents": events}
