"""time_operations: when each operation of a replayed decode step begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from roseinfer.arguments import counted
from roseinfer.display.table import Table
from roseinfer.display.view import View
from roseinfer.generate import decode_step
from roseinfer.graphs.operation import name_of
from roseinfer.graphs.recorded import RecordedGraph
from roseinfer.models import Model
from roseinfer.profiling import decode_floor, measure_machine
from roseinfer.profiling.clock import seconds_of
from roseinfer.stage import Stage

from ..measure.ready_batch import ready_batch
from ..views.rows_table import table

PROMPT_LEN, REPLAYS = 8, 30
PRODUCT, ATTENTION, OTHER = "matrix product", "attention", "other"


class Timed(NamedTuple):
    """One operation of a replay: microseconds since the replay began."""

    name: str
    begin: float
    end: float

    @property
    def kind(self) -> str:
        parts = {PRODUCT: ("linear", "mm"), ATTENTION: ("attention",)}
        return next((kind for kind, own in parts.items() if any(part in self.name for part in own)), OTHER)


@dataclass(frozen=True, repr=False)
class OperationTimes(View):
    """Times of a decode step as a view. text/plain has the counts alone.

    operations: of the median replay. step_us: a whole decode step, the host's part around the replay included.
    """

    stage: str
    batch_size: int
    operations: tuple[Timed, ...]
    step_us: float
    table: Table

    @property
    def replay_us(self) -> float:
        return self.operations[-1].end

    def __repr__(self) -> str:
        return repr(self.table)

    def to_html(self) -> str:
        return self.table.to_html()


def time_operations(stage_class: type[Stage], model: Model, batch_size: int = 1) -> OperationTimes:
    """Time every operation of a stage's captured decode step, on a CPU, and the step as a whole.

    The table adds up the kinds of operations, beside the time that reading all weights once takes on this machine.
    Raises ValueError for a model elsewhere, and for a stage without graphs.
    """
    if model.device.type != "cpu":
        raise ValueError(
            f"model must be on the CPU, where operations end before the next one begins, got {model.device}"
        )
    stage: Any
    stage, seqs = ready_batch(stage_class, model, [PROMPT_LEN] * batch_size, steps=2, max_tokens=REPLAYS + 8)
    if len(graphs := list(getattr(stage, "graphs", {}).values())) != 1:
        raise ValueError(f"stage_class must capture one graph for a batch, got {stage_class.name}")
    replay = timed_replay(graphs[0])
    with torch.inference_mode():
        replays = sorted((replay() for _ in range(REPLAYS)), key=lambda operations: operations[-1].end)
    step_us = 1e6 * median(seconds_of(partial(decode_step, stage, seqs)) for _ in range(REPLAYS))
    operations = tuple(replays[REPLAYS // 2])
    floor = decode_floor(model.config, list(map(len, seqs)), model.dtype, measure_machine("cpu", model.dtype))
    shown = _table(
        operations, f"One decode step of {stage_class.name}, {counted(batch_size, 'sequence')}", floor.seconds
    )
    return OperationTimes(stage_class.name, batch_size, operations, step_us, shown)


def timed_replay(graph: RecordedGraph) -> Callable[[], list[Timed]]:
    """Make a replay of the same operations that notes when each begins and ends."""
    notes: list[Timed] = []
    recorded: Any = graph.replay
    nodes: dict[fx.Node, fx.Node] = {}
    timed = fx.Graph()
    for node in recorded.func.__self__.graph.nodes:
        nodes[node] = timed.node_copy(node, nodes.__getitem__)
        if node.op == "call_function" and not node.target.__module__.startswith("_operator"):
            nodes[node].target = _noting(node.target, notes)
    module = fx.GraphModule(nn.Module(), timed)

    def replay() -> list[Timed]:
        notes.clear()
        begin = perf_counter()
        module.forward(*recorded.args)
        return [Timed(name, 1e6 * (start - begin), 1e6 * (end - begin)) for name, start, end in notes]

    return replay


def _noting(operation: Callable[..., Any], notes: list[Timed]) -> Callable[..., Any]:
    name = name_of(operation).split("::")[-1]

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = perf_counter()
        result = operation(*args, **kwargs)
        notes.append(Timed(name, begin, perf_counter()))
        return result

    return timed


def _table(operations: tuple[Timed, ...], title: str, floor_s: float) -> Table:
    rows: list[dict[str, Any]] = []
    for kind in (PRODUCT, ATTENTION, OTHER):
        own = [each for each in operations if each.kind == kind]
        rows.append({"kind": kind, "operations": len(own), "µs": sum(each.end - each.begin for each in own)})
        rows[-1]["share"] = rows[-1]["µs"] / operations[-1].end
    rows.append({"kind": "all", "operations": len(operations), "µs": operations[-1].end, "share": 1.0})
    note = f"To read all weights and the cache once takes {1e6 * floor_s:,.0f} µs on this machine."
    return table(rows, live=["µs", "share"], title=title, note=note, formats={"µs": "{:,.0f}", "share": "{:.0%}"})
