"""compare_graphs: decode steps with a graph and without one, for several batch sizes, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from roseinfer.bench.interleave import interleaved
from roseinfer.display.table import Table
from roseinfer.display.view import View
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling.clock import seconds_of
from roseinfer.stage import Stage

from ..measure.ready_batch import ready_batch
from ..views.rows_table import table
from ..views.said import Said

PROMPT_LEN, LARGEST = 8, 64  # tokens of each prompt, and sequences of the largest batch
FORMATS = {"step ms": "{:.2f}", "speed": "×{:.2f}"}


@dataclass(frozen=True, repr=False)
class StepSpeeds(View):
    """Speeds of steps as a view. text/plain has the sizes alone; times and sentences on them are in the live view."""

    table: Table
    said: Said
    speeds: dict[int, float]

    def __repr__(self) -> str:
        return repr(self.table)

    def to_html(self) -> str:
        return self.table.to_html() + self.said.to_html()


def compare_graphs(
    eager: type[Stage], graphs: type[Stage], model: Model, sizes: Sequence[int], steps: int
) -> StepSpeeds:
    """Time decode steps of two stages, alternating. Each has taken a step of that size before, so none is captured."""
    rows: list[dict[str, Any]] = []
    speeds, sentences = {}, []
    for size in sizes:
        batches = {c.name: ready_batch(c, model, [PROMPT_LEN] * size, 2, max_num_seqs=LARGEST) for c in (eager, graphs)}
        calls = {name: partial(seconds_of, partial(decode_step, *batch)) for name, batch in batches.items()}
        times = {name: 1e3 * median(seconds) for name, seconds in interleaved(calls, steps).items()}
        stage: Any = batches[graphs.name][0]
        computed = {eager.name: size, graphs.name: max(stage.graphs)}
        speeds[size] = times[eager.name] / times[graphs.name]
        for name, ms in times.items():
            rows.append({"sequences": size, "stage": name, "rows computed": computed[name], "step ms": ms})
            rows[-1]["speed"] = times[eager.name] / ms
        sentences.append(_sentence(size, computed[graphs.name], times[eager.name], times[graphs.name]))
    note = f"median of {steps} interleaved steps; speed: against {eager.name} on the same batch"
    shown = table(rows, live=list(FORMATS), note=note, formats=FORMATS)
    return StepSpeeds(shown, Said("what a graph gains", tuple(sentences)), speeds)


def _sentence(size: int, computed: int, eager_ms: float, graph_ms: float) -> str:
    """Say what a graph gains or loses for one batch size."""
    padding = f", with {computed - size} padding rows" if computed > size else ""
    gain = f"gains {eager_ms - graph_ms:.2f} ms" if graph_ms < eager_ms else f"loses {graph_ms - eager_ms:.2f} ms"
    plural = "s" if size > 1 else ""
    return f"**{size} sequence{plural}{padding}**: a graph {gain} of a step of {eager_ms:.2f} ms."
