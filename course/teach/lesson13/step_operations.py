"""step_operations: what the host starts in one decode step, and what is left of it around a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch._ops import OpOverload

from roseinfer.bench.contenders import StageContender
from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.graphs.operation import OperationMode, name_of
from roseinfer.models import Model
from roseinfer.stage import Stage

from ..views.rows_table import table

PROMPT_LEN, BEFORE = 8, 2  # tokens of each prompt, and decode steps before the one that is recorded
SPANS = "profiler::"


class Operation(NamedTuple):
    """An operation that PyTorch is asked for. is_view: it computes nothing, but the host creates it like any other."""

    name: str
    is_view: bool


class _Recorder(OperationMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def on_operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if not (name := name_of(func)).startswith(SPANS):
            self.operations.append(Operation(name.split("::")[-1], isinstance(func, OpOverload) and func.is_view))
        return func(*args, **kwargs)


def operations_of(run: Callable[[], object]) -> list[Operation]:
    """Record the operations that PyTorch is asked for in one call, spans left out."""
    recorder = _Recorder()
    with recorder:
        run()
    return recorder.operations


def decode_operations(stage_class: type[Stage], model: Model, batch_size: int) -> list[Operation]:
    """Record the operations of one decode step."""
    stage, seqs = _contender(stage_class, model, batch_size).at_step(BEFORE)
    return operations_of(lambda: decode_step(stage, seqs))


def graph_operations(stage_class: type[Stage], model: Model, batch_size: int) -> tuple[list[str], list[Operation]]:
    """Record the operations in the graph of a decode step, and those that the host starts around its replay.

    Raises ValueError for a stage that captures no graph of its own for the batch.
    """
    stage: Any
    stage, seqs = _contender(stage_class, model, batch_size).at_step(BEFORE)
    graphs = list(getattr(stage, "graphs", {}).values())
    if len(graphs) != 1:
        raise ValueError(f"graphs must be a stage that captures one graph for a batch, got {stage_class.name}")
    [graph] = graphs
    result = graph.replay()
    graph.replay = lambda: result  # so that only what is around it is recorded
    outside = operations_of(lambda: decode_step(stage, seqs))
    return [name.split("::")[-1] for name in graph.operations], outside


def _contender(stage_class: type[Stage], model: Model, batch_size: int) -> StageContender:
    return StageContender(stage_class, model, [[1] * PROMPT_LEN] * batch_size, BEFORE + 3)


def count_operations(stage_classes: Sequence[type[Stage]], model: Model, sizes: Sequence[int]) -> Table:
    """Show how many operations PyTorch is asked for in one decode step, and how many of them are views."""
    rows = []
    for stage_class in stage_classes:
        for size in sizes:
            operations = decode_operations(stage_class, model, size)
            rows.append({"stage": stage_class.name, "sequences": size, "operations": len(operations)})
            rows[-1]["views"] = sum(each.is_view for each in operations)
    return table(rows, title=f"What PyTorch is asked for in one step, {model.config.num_layers} layers")
