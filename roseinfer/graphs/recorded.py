"""RecordedGraph: a step's operations, written down once and played back. It is a CUDA graph for any device.

A CUDA graph keeps the kernels of a step with the addresses that they read and write, and plays them back without the
host. This one keeps the operations that PyTorch dispatched, with the tensors that they were given, and plays them back
without the model's code: no modules, none of their Python, no views that come out the same every time. Both fail in the
same way: a value that the step took from Python stays what it was.

The graph is torch.fx's, which writes it as Python: Reed et al., "torch.fx", 2021.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from .host_waits import BelowDispatch, why_host_waits
from .operation import OperationMode, name_of, writes_to_its_arguments
from .tensors import address_of, memory_of


class RecordedGraph:
    """A recording of run_step, which is called once, here, takes nothing and returns a tensor or a tuple of them.

    names: tensors for the code to call by name. Run the step once before, so that what it makes only the first time is
    made.

    Raises RuntimeError for a step in which the host reads a value, since a replay has no host that could; and for one
    that hands a tensor to NumPy, since what is done to it there is not seen (see `operation`).
    """

    def __init__(self, run_step: Callable[[], Any], names: Mapping[str, Tensor] | None = None) -> None:
        recorder = _OperationWriter(names or {})
        with recorder, BelowDispatch(_refuse):
            result = run_step()
        recorder.graph.output(tree_map_only(Tensor, recorder.node_of, result))
        module = fx.GraphModule(nn.Module(), recorder.graph)
        self.code: str = module.code
        self.operations: list[str] = recorder.operations
        self.replay: Callable[[], Any] = partial(module.forward, *recorder.outside)


def _refuse(why: str) -> None:
    raise RuntimeError(f"a step that is recorded must not {why}")


class _OperationWriter(OperationMode):
    """Writes each operation down as a node.

    What the step makes is the result of a node, and is made again in a replay; every other tensor comes from outside,
    and a replay finds it where it lies.
    """

    def __init__(self, names: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.names = {address_of(tensor): name.replace(".", "_") for name, tensor in names.items()}
        self.nodes: dict[int, fx.Node] = {}  # by the tensor's id
        self.seen: list[Tensor] = []  # kept alive while recording: an id would be given out twice
        self.outside: list[Tensor] = []
        self.placeholders: dict[Any, fx.Node] = {}  # for the tensors outside, in their order
        self.names_used: Counter[str] = Counter()
        self.operations: list[str] = []

    def on_operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if why := why_host_waits(func, args):
            _refuse(f"wait for the device, {name_of(func)}: {why}")
        result = func(*args, **kwargs)
        if self._is_view_of_outside(func, (args, kwargs), result):
            return result  # the same in every replay: to its users, a tensor from outside
        node = self.graph.call_function(func, *tree_map_only(Tensor, self.node_of, (args, kwargs)))
        self.operations.append(name_of(func))
        if isinstance(result, Tensor):
            self._keep(result, node)
        else:
            for i, part in enumerate(result or ()):
                self._keep(part, self.graph.call_function(operator.getitem, (node, i)))
        return result

    def node_of(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self.nodes:
            self._keep(tensor, self._placeholder(tensor))
        return self.nodes[id(tensor)]

    def _placeholder(self, tensor: Tensor) -> fx.Node:
        """Return the placeholder of a tensor from outside, or of a view of one. Equal views share one."""
        view = address_of(tensor), tensor.shape, tensor.dtype, tensor.layout == torch.strided and tensor.stride()
        if view not in self.placeholders:
            name = self.names.get(view[0], "outside")
            self.names_used[name] += 1
            suffix = f"_{self.names_used[name]}" if self.names_used[name] > 1 else ""
            self.placeholders[view] = self.graph.placeholder(name + suffix)
            self.outside.append(tensor)
        return self.placeholders[view]

    def _keep(self, tensor: Tensor, node: fx.Node) -> None:
        """Keep a tensor's node, unless it has one: an operation may return what it was given, changed."""
        if id(tensor) not in self.nodes:
            self.nodes[id(tensor)] = node
            self.seen.append(tensor)

    def _is_view_of_outside(self, func: Any, given: Any, result: Any) -> bool:
        tensors = [x for x in tree_leaves(given) if isinstance(x, Tensor)]
        if not isinstance(func, OpOverload) or writes_to_its_arguments(func) or not tensors:
            return False
        if any(id(x) in self.nodes and self.nodes[id(x)].op != "placeholder" for x in tensors):
            return False
        memory = {memory_of(x) for x in tensors}
        return all(memory_of(x) in memory for x in tree_leaves(result) if isinstance(x, Tensor))
