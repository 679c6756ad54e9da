"""Times of an all-reduce: its share of a decode step here, and computed for the links between GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.paths import LINKS
from roseinfer.profiling.span_times import SpanTimes
from roseinfer.profiling.spans import listening
from roseinfer.stage import Stage

from ..measure.ready_batch import ready_batch
from ..views.rows_table import table

REDUCE, STEP = "roseinfer.parallel.all_reduce", "roseinfer.decode_step_sessions.total"
CONTEXT, STEPS = 64, 20


def link_of(name: str) -> dict[str, Any]:
    """Return bytes_per_s, assumed_latency_s and source of a link. Raises ValueError for an unknown name."""
    links = json.loads(LINKS.read_text(encoding="utf-8"))
    if name not in links:
        raise ValueError(f"link={name!r} is not in roseinfer/data/links.json, allowed: {', '.join(links)}")
    return links[name]


def ring_seconds(num_bytes: int, size: int, bytes_per_s: float, latency: float) -> float:
    """Compute a ring all-reduce's seconds: 2 (size - 1) messages in turn, of 1/size of the bytes. latency: of each."""
    messages = 2 * (size - 1)
    return messages * (num_bytes / size / bytes_per_s + latency)


def one_shot_seconds(num_bytes: int, size: int, bytes_per_s: float, latency: float) -> float:
    """Compute a one-shot all-reduce's seconds: a rank receives all bytes of every other one, after one latency."""
    return latency + (size - 1) * num_bytes / bytes_per_s if size > 1 else 0.0


def reduce_share(stage_class: type[Stage], model: Model, batch_sizes: Sequence[int] = (1, 16)) -> Table:
    """Measure the share of a decode step that its all-reduces take on rank 0, waiting for the other rank included."""
    rows = []
    for batch_size in batch_sizes:
        stage, seqs = ready_batch(stage_class, model, [CONTEXT] * batch_size, steps=3)
        spans = SpanTimes(lambda name, around: name in (REDUCE, STEP))
        with listening(spans):
            for _ in range(STEPS):
                decode_step(stage, seqs)
        step, reduce = (sum(one.seconds for one in spans.kept if one.name == name) for name in (STEP, REDUCE))
        rows.append({
            "sequences": batch_size,
            "all-reduces per step": sum(one.name == REDUCE for one in spans.kept) // STEPS,
            "step, ms": 1000 * step / STEPS,
            "all-reduces, ms": 1000 * reduce / STEPS,
            "share, %": 100 * reduce / step,
        })  # fmt: skip
    live = ["step, ms", "all-reduces, ms", "share, %"]
    title = f"decode steps of {stage_class.name}, {CONTEXT} cached tokens per sequence"
    return table(rows, live, title, f"means of {STEPS} steps", {name: "{:.2f}" for name in live})
