"""draw_padding: the rows of a decode step, padded to a bucket, and the slot of the pool that each row writes."""

from __future__ import annotations

from collections import abc
from typing import Any

from course.display.board import WIDTH, Board, Cell, Frame, Line, Panel
from roseinfer.display.chart import INK
from roseinfer.sequence import Sequence

POOL = 3.5  # the pool's row


def draw_padding(stage: Any, seqs: abc.Sequence[Sequence], bucket: int) -> Board:
    """Draw the rows of the step that `stage`, a Graphs, has just run on `seqs`, with padding rows up to `bucket`.

    Below them are the slots of the pool: those that a sequence has filled are coloured. A line joins a row to the slot
    that its K and V went to. Raises ValueError when bucket is smaller than the batch.
    """
    if bucket < len(seqs):
        raise ValueError(f"bucket must be at least the {len(seqs)} sequences, got {bucket!r}")
    slots = [int(slot) for slot in stage.inputs_on_host["slot_mapping"][:bucket]]
    num_slots = (stage.dummy_block + 1) * stage.block_size
    cells, lines = _pool(stage, seqs), []
    width = min(6, num_slots / bucket)
    for row, slot in enumerate(slots):
        is_pad, middle = row >= len(seqs), (row + 0.5) * num_slots / bucket
        colour = "" if is_pad else row
        cells.append(Cell(0, middle - width / 2, f"row {row}", colour, hatched=is_pad, width=width))
        lines.append(Line((1, middle), (POOL, slot + 0.5), INK if is_pad else row, dashed=is_pad, arrow=True))
    return Board(
        [Frame([Panel(cells, cell=(WIDTH, 32), lines=lines)])],
        f"A batch of {len(seqs)} in a bucket of {bucket}. Rows 0 to {len(seqs) - 1} write the slots "
        f"{slots[: len(seqs)]}, each in a block of its own sequence. The padding rows write {slots[len(seqs) :]}, "
        f"in block {stage.dummy_block}, which no sequence is ever given.",
    )


def _pool(stage: Any, seqs: abc.Sequence[Sequence]) -> list[Cell]:
    size, cells = stage.block_size, []
    owners: dict[int, tuple[int | str, int]] = {}
    for row, seq in enumerate(seqs):
        for column, block in enumerate(stage.tables.of(seq.seq_id, 0)):
            owners[block] = row, seq.num_cached_tokens - column * size
    for block in range(stage.dummy_block + 1):
        is_dummy = block == stage.dummy_block
        owner, filled = owners.get(block, ("", 0))
        for slot in range(size):
            cells.append(Cell(POOL, block * size + slot, colour=owner if slot < filled else "", hatched=is_dummy))
        cells.append(Cell(POOL, block * size, width=size, outline=INK))
        name = "dummy block" if is_dummy else f"block {block}"
        cells.append(Cell(POOL + 0.9, block * size, name, width=size, outline="none"))
    return cells
