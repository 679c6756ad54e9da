"""compare_graphs: decode steps with a graph and without one, for several batch sizes, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.stage import Stage

from ..measure.median_times import median_ms
from ..measure.ready_batch import ready_batch
from ..views.rows_table import table

PROMPT_LEN, LARGEST = 8, 64  # tokens of each prompt, and sequences of the largest batch
FORMATS = {"step ms": "{:.2f}", "speed": "×{:.2f}"}


def compare_graphs(eager: type[Stage], graphs: type[Stage], model: Model, sizes: Sequence[int], steps: int) -> Table:
    """Time decode steps of two stages, alternating. Each has taken a step of that size before, so none is captured."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        batches = {c.name: ready_batch(c, model, [PROMPT_LEN] * size, 2, max_num_seqs=LARGEST) for c in (eager, graphs)}
        times = median_ms({name: partial(decode_step, *batch) for name, batch in batches.items()}, steps)
        stage: Any = batches[graphs.name][0]
        computed = {eager.name: size, graphs.name: max(stage.graphs)}
        for name, ms in times.items():
            rows.append({"sequences": size, "stage": name, "rows computed": computed[name], "step ms": ms})
            rows[-1]["speed"] = times[eager.name] / ms
    note = f"median of {steps} interleaved steps; speed: against {eager.name} on the same batch"
    return table(rows, live=list(FORMATS), note=note, formats=FORMATS)
