"""step_operations: what the host starts in one decode step, and what is left of it around a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch._ops import OpOverload

from roseinfer.bench.contenders import StageContender
from roseinfer.generate import decode_step
from roseinfer.graphs.operation import OperationMode, name_of
from roseinfer.models import Model
from roseinfer.stage import Stage

PROMPT_LEN, BEFORE = 8, 2  # tokens of each prompt, and decode steps before the one that is recorded
SPANS = "profiler::"


class Operation(NamedTuple):
    """is_view: it computes nothing, but the host makes it like any other."""

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
    """Operations that PyTorch is asked for in one call, spans left out."""
    recorder = _Recorder()
    with recorder:
        run()
    return recorder.operations


def decode_operations(stage_class: type[Stage], model: Model, batch_size: int) -> list[Operation]:
    """The operations of one decode step."""
    stage, seqs = _contender(stage_class, model, batch_size).at_step(BEFORE)
    return operations_of(lambda: decode_step(stage, seqs))


def graph_operations(stage_class: type[Stage], model: Model, batch_size: int) -> tuple[list[str], list[Operation]]:
    """The operations in the graph of a decode step, and those that the host starts around its replay.

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
