"""A check that a step can be captured as a CUDA graph, on any device, from the operations that the step dispatches.

A graph plays back the same kernels on the same addresses. So a step may take from outside only what lies where it lay
before (weights, pool, input buffers), must not make tensors of Python's values (they would stay what they were at the
capture), and must not wait for the device, which during a capture computes nothing. NVIDIA, "CUDA Programming Guide".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from roseinfer.graphs.host_waits import BelowDispatch, why_host_waits
from roseinfer.graphs.operation import OperationMode, name_of
from roseinfer.graphs.tensors import address_of, memory_of

FROM_PYTHON = ("aten::lift_fresh", "uploaded")


@dataclass
class StepRecord:
    """A recorded step. ops: in order, each with arguments as a replay must find them. violations: what forbids it."""

    ops: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class _CallRecorder(OperationMode):
    def __init__(self, persistent: Iterable[Tensor]) -> None:
        super().__init__()
        self.persistent = {memory_of(tensor) for tensor in persistent}
        self.made: dict[int, Tensor] = {}  # by storage; kept alive, or an address would be given out twice
        self.record = StepRecord()

    def on_operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name = name_of(func)
        leaves = tree_leaves((args, kwargs))
        self.record.ops.append((name, tuple(map(self._described, leaves))))
        if why := why_host_waits(func, args):
            self.record.violations.append(f"{name}: {why}")
        result = func(*args, **kwargs)
        if name in FROM_PYTHON:
            self.record.violations.append(f"{name}: a tensor is made of Python's values {tuple(result.shape)}")
        elif outside := [x for x in leaves if isinstance(x, Tensor) and self._comes_from_outside(x)]:
            shapes = ", ".join(str(list(x.shape)) for x in outside)
            self.record.violations.append(f"{name}: reads a tensor {shapes} that is no weight, pool or input buffer")
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and memory_of(x) not in self.persistent:
                self.made[memory_of(x)] = x
        return result

    def _comes_from_outside(self, x: Tensor) -> bool:
        return x.numel() > 0 and memory_of(x) not in self.persistent and memory_of(x) not in self.made

    def _described(self, x: Any) -> Any:
        """Describe what must be the same in a replay: of a tensor the shape, and the address where it is persistent."""
        if not isinstance(x, Tensor):
            return x if isinstance(x, (int, float, bool, str, type(None))) else str(x)
        address = address_of(x) if memory_of(x) in self.persistent else None
        return (*x.shape, str(x.dtype), address)


def record_step(run_step: Callable[[], Any], persistent: Iterable[Tensor]) -> StepRecord:
    """Run `run_step` once, and record it. persistent: tensors that stay where they are from step to step.

    Views of these count, too. `reachable.tensors_of(model)` has those of a model, packed weights among them.
    """
    recorder = _CallRecorder(persistent)
    with recorder, BelowDispatch(lambda what: recorder.record.violations.append(f"a step must not {what}")):
        run_step()
    return recorder.record


def replay_differences(first: StepRecord, second: StepRecord) -> list[str]:
    """List the differences of two steps that would have to be one graph; empty when either could replay the other."""
    if len(first.ops) != len(second.ops):
        return [f"{len(first.ops)} operations, then {len(second.ops)}"]
    return [
        f"operation {i}: {a[0]} {a[1]}, then {b[0]} {b[1]}"
        for i, (a, b) in enumerate(zip(first.ops, second.ops, strict=True))
        if a != b
    ]
