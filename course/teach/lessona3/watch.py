"""Run a kernel in Triton's interpreter, note what each program loads and stores, and stop at a wrong access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from roseinfer.arguments import counted

from ..measure.kernel_loads import Touch, innermost, watched
from .arena import Arena


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: tensors and numbers by name, in the kernel's order, and the constexprs."""

    arguments: Mapping[str, Any]
    programs: int
    constexprs: Mapping[str, int]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.arguments.items() if isinstance(value, Tensor)}

    def run(self, kernel: Any, arena: Arena) -> Tensor:
        """Launch the kernel on the tensors in the arena, and return `out`."""
        arguments = [arena.tensors.get(name, value) for name, value in self.arguments.items()]
        kernel[(self.programs,)](*arguments, **self.constexprs)
        return arena.tensors["out"]


class Access(NamedTuple):
    """One load or store of a program.

    touched: offsets in the tensor's memory that it touches; masked: the offsets that its masked lanes point at, which
    may lie outside; is_open: lanes are masked, and no `other` says what they hold.
    """

    program: int
    kind: str
    tensor: str
    touched: tuple[int, ...]
    masked: tuple[int, ...]
    is_open: bool = False


class WrongAccess(Exception):
    """A program touched what it must not; the message says which program, and what. hint: what may be the cause."""

    hint = "Is a mask missing, or an offset wrong?"


@dataclass
class Record:
    """Accesses of one launch, in their order."""

    programs: int
    accesses: list[Access] = field(default_factory=list)

    def of(self, kind: str, tensor: str) -> list[Access]:
        return [access for access in self.accesses if (access.kind, access.tensor) == (kind, tensor)]

    def programs_of(self, kind: str, tensor: str) -> dict[int, set[int]]:
        """Map each offset that is loaded or stored to the programs that do it."""
        found: dict[int, set[int]] = {}
        for access in self.of(kind, tensor):
            for offset in access.touched:
                found.setdefault(offset, set()).add(access.program)
        return found

    def touched(self, kind: str, tensor: str) -> int:
        """Count the values of a tensor that all programs load or store together."""
        return sum(len(access.touched) for access in self.of(kind, tensor))

    def masked(self, kind: str, tensor: str) -> int:
        """Count the lanes of these loads or stores that are masked."""
        return sum(len(access.masked) for access in self.of(kind, tensor))

    def lanes(self, kind: str, tensor: str) -> int:
        """Count the lanes that these loads or stores have, masked or not."""
        return self.touched(kind, tensor) + self.masked(kind, tensor)


def run_recorded(launch: Launch, kernel: Any) -> tuple[Record, Arena]:
    """Record a launch in this process, which must interpret kernels. Raises WrongAccess, and what the kernel raised."""
    arena = Arena(launch.tensors)
    try:
        with _recorded(arena, launch.programs) as found:
            launch.run(kernel, arena)
    except Exception as error:
        raise innermost(error) from None
    return found, arena


@contextmanager
def _recorded(arena: Arena, programs: int) -> Iterator[Record]:
    """Record what is launched inside on the arena's tensors.

    Raises WrongAccess before memory outside of them would be touched, and before anything but `out` would be written.
    """
    from triton.runtime.interpreter import interpreter_builder, interpreter_semantic

    record = Record(programs)

    def refuse_descriptor(*args: Any, **named: Any) -> None:
        error = WrongAccess("tensor descriptors are not watched here")  # rows of fewer than 16 bytes cannot have one
        error.hint = "Use pointers and masks."
        raise error

    def note(touch: Touch) -> None:
        program, kind = interpreter_builder.grid_idx[0], touch.kind
        positions, let_through = arena.positions(touch.addresses), touch.mask.reshape(-1).astype(bool)
        touched = positions[let_through]
        wrong = touched[~arena.is_own(touched)]
        if len(wrong):
            error = WrongAccess(f"program {program} {_outside(arena, kind, int(wrong[0]))}")
            masked = positions[~let_through]
            if "of block_table" in str(error):
                error.hint = "The table has an entry per block: that of token t is t // BLOCK_SIZE."
            elif len(masked) and len(wrong) == len(touched) and arena.is_own(masked).all():
                error.hint = "The mask is the wrong way round: it must be True for the lanes inside."
            raise error
        name = arena.nearest(int(positions[np.argmax(let_through)]))
        if kind == "store" and name != "out" and len(touched):
            at = arena.name_at(int(touched[0]))
            raise WrongAccess(f"program {program} stores to {at}: a kernel writes nothing but out")
        start = arena.places[name].start
        masked = positions[~let_through] - start
        reached = tuple((touched - start).tolist()), tuple(masked.tolist())
        record.accesses.append(Access(program, kind, name, *reached, touch.is_open))

    interpreter_semantic.make_tensor_descriptor = refuse_descriptor
    try:
        with watched(note):
            yield record
    finally:
        del interpreter_semantic.make_tensor_descriptor  # the class's own is found again


def _outside(arena: Arena, kind: str, position: int) -> str:
    name = arena.nearest(position)
    start, size = arena.places[name]
    offset, verb = position - start, {"load": "loads", "store": "stores to"}[kind]
    elements = counted(arena.tensors[name].numel(), "element")
    if 0 <= offset < size:
        return f"{verb} memory between the rows of {name}, at offset {offset}, which is no element of it"
    if abs(offset) > size + 512:
        return f"{verb} an address that is far from every tensor"
    return f"{verb} offset {offset} of {name}, which has {elements}"
