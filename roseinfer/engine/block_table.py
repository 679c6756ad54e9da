"""BlockTable: which blocks each sequence of the engine holds, as attention reads it. All layers share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from .prefix_cache import Entry


@dataclass(slots=True, eq=False)
class Held:
    """What one sequence holds: a row of the table, and blocks in the order of its tokens.

    num_owed: blocks that it was promised and does not hold yet. chain: entries of the prefix cache for its full blocks,
    from the first one on. claimed: keys of the blocks that it is computing.
    """

    row: int
    blocks: list[int] = field(default_factory=list)
    num_owed: int = 0
    chain: list[Entry] = field(default_factory=list)
    claimed: list[bytes] = field(default_factory=list)


class BlockTable:
    """A row of block ids for each of max_num_seqs sequences, at most max_blocks long.

    ids [max_num_seqs, max_blocks] int32 is what attention reads. An entry is written when its block is handed out, so a
    step that needs no block writes nothing. held: what each sequence holds, by seq_id, in the order in which they came.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int) -> None:
        self.ids = np.zeros((max_num_seqs, max_blocks), np.int32)
        self.held: dict[int, Held] = {}
        self._free_rows = list(reversed(range(max_num_seqs)))

    def extend(self, seq_id: int, blocks: Iterable[int]) -> Held:
        """Write blocks after those that a sequence holds; a new sequence gets a row first."""
        if seq_id not in self.held:
            self.held[seq_id] = Held(self._free_rows.pop())
        held, blocks = self.held[seq_id], list(blocks)
        self.ids[held.row, len(held.blocks) : len(held.blocks) + len(blocks)] = blocks
        held.blocks.extend(blocks)
        return held

    def replace_last(self, seq_id: int, block: int) -> int:
        """Write another block in the place of a sequence's last one, and return that."""
        held = self.held[seq_id]
        replaced, held.blocks[-1] = held.blocks[-1], block
        self.ids[held.row, len(held.blocks) - 1] = block
        return replaced

    def remove(self, seq_id: int) -> Held:
        """Free a sequence's row, and return what it held. Raises KeyError when it has none."""
        held = self.held.pop(seq_id)
        self._free_rows.append(held.row)
        return held

    def check(self) -> None:
        """Check that each row is held once or free, and names the blocks of its sequence."""
        for seq_id, held in self.held.items():
            assert self.ids[held.row, : len(held.blocks)].tolist() == held.blocks, f"row of sequence {seq_id}"
        rows = [*self._free_rows, *(held.row for held in self.held.values())]
        assert sorted(rows) == list(range(len(self.ids))), "rows lost"
