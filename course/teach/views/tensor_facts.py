"""What a tensor is, in exact facts: shape, strides, dtype, and whose memory it lies in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class TensorFacts:
    """Exact facts of a tensor. name: of one tensor, or of several that are alike, past[0..3][0..1].

    strides: in elements. memory: "own", "part of N bytes" (a view of a larger tensor), "in X's memory" or "= X" for an
    earlier tensor X.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    contiguous: bool
    memory: str


class Memory:
    """Describes tensors one after another, and says which of the earlier ones each shares its memory with."""

    def __init__(self) -> None:
        self._described: dict[tuple[Any, ...], TensorFacts] = {}
        self._storages: dict[int, str] = {}  # address -> the first tensor seen in it
        self._kept: list[Tensor] = []  # an address may be used again once its tensor is gone

    def facts(self, name: str, value: Any) -> list[TensorFacts]:
        """List the facts of a tensor, or of lists and tuples: alike elements are described once. [] for others."""
        if isinstance(value, Tensor):
            return [self._tensor(name, value)]
        if not isinstance(value, (list, tuple)):
            return []
        each = [self.facts(f"{name}[{i}]", element) for i, element in enumerate(value)]
        suffixes = [
            [replace(facts, name=facts.name.removeprefix(f"{name}[{i}]")) for facts in element]
            for i, element in enumerate(each)
        ]
        if len(value) > 1 and all(suffix == suffixes[0] for suffix in suffixes):
            return [replace(facts, name=f"{name}[0..{len(value) - 1}]{facts.name}") for facts in suffixes[0]]
        return [facts for element in each for facts in element]

    def _tensor(self, name: str, tensor: Tensor) -> TensorFacts:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        known = self._described.get(key)
        if known:  # under another index of the same list it is no other tensor
            is_alias = known.name.partition("[")[0] != name.partition("[")[0]
            return replace(known, name=name, memory=f"= {known.name}" if is_alias else known.memory)
        storage = tensor.untyped_storage()
        nbytes = tensor.numel() * tensor.element_size()
        memory = "own" if storage.nbytes() <= nbytes else f"part of {storage.nbytes():,} bytes"
        if first := self._storages.get(storage.data_ptr()):
            memory = f"in {first}'s memory"
        self._storages.setdefault(storage.data_ptr(), name)
        self._kept.append(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        facts = TensorFacts(name, tuple(tensor.shape), tensor.stride(), dtype, tensor.is_contiguous(), memory)
        self._described[key] = facts
        return facts
