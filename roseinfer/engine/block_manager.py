"""BlockManager: who holds which block of the pool. One table a sequence, which all layers share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roseinfer.blocks import OutOfBlocks


class BlockManager:
    """num_blocks blocks of block_size tokens, for max_num_seqs sequences of at most max_blocks blocks each.

    table [max_num_seqs, max_blocks] int32 is what attention reads: row `row_of(seq_id)` names the sequence's blocks in
    token order. An entry is written when its block is handed out, so a step that needs no block writes nothing.
    A block is free, or ref_counts says how many tables it stands in. Answers the questions that BlockTables answers, as
    a pool with one table.
    """

    num_tables = 1

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.table = np.zeros((max_num_seqs, max_blocks), np.int32)
        self.ref_counts = [0] * num_blocks
        # Popped from the end, so that block 0 is handed out first and a freed block is reused while caches know it.
        self._free = list(reversed(range(num_blocks)))
        self._free_rows = list(reversed(range(max_num_seqs)))
        self._rows: dict[int, int] = {}
        self._blocks: dict[int, list[int]] = {}
        self._owed: dict[int, int] = {}  # blocks that were promised to a sequence and that it does not hold yet
        self._num_owed = 0

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._rows

    def __len__(self) -> int:
        """Sequences that hold a row."""
        return len(self._rows)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_unpromised(self) -> int:
        """Free blocks without those that sequences were promised and do not hold yet."""
        return len(self._free) - self._num_owed

    @property
    def seq_ids(self) -> list[int]:
        """Sequences that hold a row, in the order in which they came."""
        return list(self._rows)

    def free_blocks(self, table: int = 0) -> list[int]:
        return list(self._free)

    def of(self, seq_id: int, table: int = 0) -> list[int]:
        """Block ids of one sequence, in token order."""
        return self._blocks[seq_id]

    def row_of(self, seq_id: int) -> int:
        return self._rows[seq_id]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def promise(self, seq_id: int, num_tokens: int) -> None:
        """A sequence that holds a row may grow to num_tokens tokens: num_unpromised leaves room for it."""
        self._num_owed -= self._owed.get(seq_id, 0)
        self._owed[seq_id] = max(0, self.blocks_for(num_tokens) - len(self._blocks[seq_id]))
        self._num_owed += self._owed[seq_id]

    def reserve(self, num_tokens: dict[int, int]) -> None:
        """Let each sequence seq_id hold blocks for num_tokens[seq_id] tokens: all of them, or none and OutOfBlocks."""
        missing = {
            seq_id: self.blocks_for(n) - len(self._blocks[seq_id] if seq_id in self._blocks else ())
            for seq_id, n in num_tokens.items()
        }
        needed = sum(max(0, n) for n in missing.values())
        if needed > len(self._free):
            raise OutOfBlocks(
                f"{needed} more blocks of {self.block_size} tokens are needed, {len(self._free)} of num_blocks="
                f"{self.num_blocks} are free: nothing was written; free a sequence or make the pool larger"
            )
        for seq_id, n in missing.items():
            self.hold(seq_id, [self._free.pop() for _ in range(n)])

    def share(self, seq_id: int, blocks: Iterable[int]) -> None:
        """Blocks that other tables hold become the next ones of this sequence, too."""
        blocks = list(blocks)
        assert all(self.ref_counts[block] for block in blocks), f"a free block cannot be shared: {blocks}"
        self.hold(seq_id, blocks)

    def hold(self, seq_id: int, blocks: list[int]) -> None:
        """Write blocks behind those that the sequence holds; a new sequence gets a row first."""
        if seq_id not in self._rows:
            self._rows[seq_id] = self._free_rows.pop()
            self._blocks[seq_id] = []
        held = self._blocks[seq_id]
        self.table[self._rows[seq_id], len(held) : len(held) + len(blocks)] = blocks
        held.extend(blocks)
        for block in blocks:
            self.ref_counts[block] += 1
        paid = min(len(blocks), self._owed.get(seq_id, 0))
        if paid:
            self._owed[seq_id] -= paid
            self._num_owed -= paid

    def free(self, seq_id: int) -> None:
        """Give back the row of a sequence, and every block that stands in no other table. KeyError when it has none."""
        self._free_rows.append(self._rows.pop(seq_id))
        self._num_owed -= self._owed.pop(seq_id, 0)
        for block in reversed(self._blocks.pop(seq_id)):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free.append(block)

    def check(self) -> None:
        """Every block is free once, or stands in as many tables as its ref count says; every row is held or free."""
        held = [0] * self.num_blocks
        for seq_id, blocks in self._blocks.items():
            assert self.table[self._rows[seq_id], : len(blocks)].tolist() == blocks, f"row of sequence {seq_id}"
            for block in blocks:
                held[block] += 1
        assert held == self.ref_counts, "ref_counts are not the number of tables that a block stands in"
        unheld = [block for block, count in enumerate(held) if count == 0]
        assert sorted(self._free) == unheld, "blocks lost, or free twice"
        assert sorted([*self._free_rows, *self._rows.values()]) == list(range(len(self.table))), "rows lost"
        assert self._num_owed == sum(self._owed.values()) and self._owed.keys() <= self._rows.keys(), "promises lost"
