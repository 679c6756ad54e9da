"""draw_rung: the memory of a rung's tensors, and what each program loads and stores in it, a step per frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.chart import INK

from .rung_record import record_rung
from .rungs import find_rung
from .watch import Access, Record

LOADED, STORED = 0, 1  # colours
NOW, BEFORE = 0.75, 0.18  # strength
WIDE, SIZE, SMALL = (42, 22), (32, 22), (34, 22)  # pixels of a cell: of vectors one below the other, matrices, a pool
MOST_STEPS = 60
LEGEND = (
    Cell(0, 0, "loaded now", LOADED, strength=NOW, outline=INK),
    Cell(0, 0, "loaded before", LOADED, strength=BEFORE),
    Cell(0, 0, "stored now", STORED, strength=NOW, outline=INK),
    Cell(0, 0, "stored before", STORED, strength=BEFORE),
    Cell(0, 0, "    ", hatched=True, outline=INK, dashed=True),  # text on its lines would be hard to read
    Cell(0, 0, "masked lane: an address, no access", outline="none"),
    Cell(0, 0, "outside of the tensor", dashed=True),
)


def draw_rung(rung_id: str, kernel: Any = None) -> Board:
    """Draw the tensors of a rung in memory, and what the programs of a launch touch, recorded in the interpreter.

    The number in a cell is its offset. A step is what a program does until it loads the same tensor again.

    kernel: one of yours, which need not be right, but must stay inside the tensors; by default the course's. Raises
    ValueError for a kernel that cannot be recorded, or that touches nothing.
    """
    rung = find_rung(rung_id)
    record = record_rung(rung_id, kernel=kernel)
    if not record.accesses:
        raise ValueError(f"kernel of {rung_id} must load or store something to be drawn: this one touches no tensor")
    tensors = rung.launch(*rung.shown).tensors
    steps = list(steps_of(record))
    are_vectors = all(tensor.dim() == 1 for tensor in tensors.values())
    cell = WIDE if are_vectors else SIZE
    maps = {name: _Memory(name, tensor, record, cell) for name, tensor in tensors.items()}
    order = sorted((name for name in tensors if name != "out"), key=lambda name: maps[name].is_pool)
    order.insert(0 if any(memory.is_pool for memory in maps.values()) else len(order), "out")
    frames = []
    for number, step in enumerate(steps):
        before = [access for earlier in steps[:number] for access in earlier]
        panels = [maps[name].panel(step, before) for name in order]
        frames.append(Frame(panels, _heading(step, steps, record.programs), "; ".join(map(_say, step)) + "."))
    return Board(frames, _text(rung_id, rung.title, record, tensors), "step", legend=LEGEND)


def steps_of(record: Record) -> Iterator[list[Access]]:
    """Cut the accesses before each new program, and before a load of a tensor that the step has loaded already.

    A record of more than MOST_STEPS such steps is cut by program alone.
    """
    steps = list(_cut(record.accesses, by_tensor=True))
    yield from steps if len(steps) <= MOST_STEPS else _cut(record.accesses, by_tensor=False)


def _cut(accesses: Sequence[Access], by_tensor: bool) -> Iterator[list[Access]]:
    step: list[Access] = []
    for access in accesses:
        again = any((access.kind, access.tensor) == (old.kind, old.tensor) for old in step)
        if step and (access.program != step[0].program or (by_tensor and again)):
            yield step
            step = []
        step.append(access)
    if step:
        yield step


class _Memory:
    """One tensor's memory as rows of cells: the memory's rows, whatever the view; a pool's blocks lie side by side."""

    def __init__(self, name: str, tensor: Tensor, record: Record, cell: tuple[int, int]) -> None:
        self.name, self.tensor = name, tensor
        self.size = tensor.untyped_storage().nbytes() // tensor.element_size()
        self.memory = tensor.as_strided((self.size,), (1,), 0)
        reached = [offset for access in record.accesses if access.tensor == name for offset in access.masked]
        self.end = max([self.size, *(offset + 1 for offset in reached)])
        shape = tensor.T.shape if tensor.dim() == 2 and tensor.stride(0) < tensor.stride(1) else tensor.shape
        self.is_pool = len(shape) == 3
        self.width = self.end if len(shape) == 1 else shape[-1]
        self.slots = shape[1] if self.is_pool else 1
        self.cell = SMALL if self.is_pool else cell

    def panel(self, step: Sequence[Access], before: Sequence[Access]) -> Panel:
        looks: dict[int, dict[str, Any]] = {offset: {} for offset in range(self.size)}
        looks |= {offset: {"dashed": True} for offset in range(self.size, self.end)}
        for accesses, strength, outline in ((before, BEFORE, ""), (step, NOW, INK)):
            for access in accesses:
                if access.tensor != self.name:
                    continue
                colour = LOADED if access.kind == "load" else STORED
                for offset in access.touched:
                    looks[offset] |= {"colour": colour, "strength": strength, "outline": outline}
        for access in step:
            for offset in access.masked if access.tensor == self.name else ():
                looks[offset] |= {"hatched": True, "dashed": True, "outline": INK}
        cells = [Cell(*self._place(offset), self._text(offset), **look) for offset, look in looks.items()]
        return Panel([*cells, *self._blocks()], self._title(), cell=self.cell, size=11)

    def _place(self, offset: int) -> tuple[float, float]:
        row, column = divmod(offset, self.width)
        if not self.is_pool:
            return row, column
        block, slot = divmod(row, self.slots)
        return slot + 1, block * (self.width + 0.4) + column

    def _text(self, offset: int) -> str:
        if self.name == "block_table" and offset < self.size:
            return str(int(self.memory[offset]))
        if offset < self.size and self.memory.is_floating_point() and self.name != "out":
            return "" if self.memory[offset].isnan() else str(offset)
        return str(offset)

    def _blocks(self) -> list[Cell]:
        if not self.is_pool:
            return []
        width = self.width
        return [
            Cell(0, block * (width + 0.4), f"block {block}", outline="none", width=width)
            for block in range(self.tensor.size(0))
        ]

    def _title(self) -> str:
        shape = f"[{', '.join(map(str, self.tensor.shape))}]"
        if self.name == "block_table":
            return f"block_table {shape}: the id of each block"
        if self.tensor.dim() == 2 and self.tensor.stride(0) < self.tensor.stride(1):
            return f"{self.name} {shape}, transposed: a row is a column of the memory"
        return f"{self.name} {shape}" + (": empty cells hold no token (NaN)" if self.is_pool else "")


def _heading(step: Sequence[Access], steps: Sequence[Sequence[Access]], programs: int) -> str:
    program = step[0].program
    own = [other for other in steps if other[0].program == program]
    number = next(i for i, other in enumerate(own) if other is step)
    place = {programs - 1: f"the last of {programs}", 0: f"the first of {programs}"}.get(program, f"of {programs}")
    which = f"program_id {program} ({place if programs > 1 else 'the only one'})"
    return which + (f", its step {number} of {len(own) - 1}" if len(own) > 1 else "")


def _say(access: Access) -> str:
    verb = {"load": "loads", "store": "stores"}[access.kind]
    masked = f" ({_lanes(len(access.masked))} masked)" if access.masked else ""
    return f"{verb} {access.tensor}{_span(access.touched)}{masked}"


def _lanes(number: int) -> str:
    return "1 lane" if number == 1 else f"{number} lanes"


def _span(offsets: Sequence[int]) -> str:
    """Write offsets as runs: [0..3, 8]."""
    runs: list[list[int]] = []
    for offset in sorted(offsets):
        if runs and offset == runs[-1][1] + 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    texts = [str(first) if first == last else f"{first}..{last}" for first, last in runs]
    return f"[{', '.join(texts)}]" if texts else " nothing"


def _text(rung_id: str, title: str, record: Record, tensors: dict[str, Tensor]) -> str:
    programs = f"{record.programs} program" + ("s" if record.programs > 1 else "")
    parts = []
    for name in tensors:
        kind = "store" if name == "out" else "load"
        masked = record.masked(kind, name)
        part = f"{name} {record.touched(kind, name)} of {tensors[name].numel()}"
        parts.append(part + (f", {_lanes(masked)} masked" if masked else ""))
    return f"{rung_id} {title}: {programs}; values stored to {parts[0]}; loaded from {'; '.join(parts[1:])}"
