"""BlockTables: which sequences hold which blocks, with a free list for each table.

The physical blocks belong to a stage; this is only the bookkeeping, in plain Python, with no tensor in it. Stages
with a block list for each layer (as the first post has) use one table per layer.
"""

from __future__ import annotations

from roseinfer.arguments import counted

BLOCK_SIZE = 64  # tokens of a block, unless another size is asked for


class OutOfBlocks(RuntimeError):
    """Raised when the pool has too few free blocks, before anything is changed: free a sequence and try again."""


class BlockTables:
    """num_tables independent pools of num_blocks blocks, each block_size tokens long."""

    prefix_cache = None  # as a BlockManager may have one; what a stage finds again is its own business

    def __init__(self, num_tables: int, num_blocks: int, block_size: int) -> None:
        self.num_tables = num_tables
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Popped from the end, so that block 0 is handed out first and a freed block is reused soon.
        self._free = [list(reversed(range(num_blocks))) for _ in range(num_tables)]
        self._held: dict[int, list[list[int]]] = {}
        self._promised: dict[int, int] = {}  # blocks in each table
        self._versions: dict[int, int] = {}
        self._last_version = 0

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._held

    def __len__(self) -> int:
        """Return the number of sequences that hold blocks."""
        return len(self._held)

    def of(self, seq_id: int, table: int) -> list[int]:
        """Return the block ids of one sequence in one table, in token order."""
        return self._held[seq_id][table]

    @property
    def seq_ids(self) -> list[int]:
        """Sequences that hold blocks, in the order in which they came."""
        return list(self._held)

    def free_blocks(self, table: int) -> list[int]:
        """Return the ids of the blocks of one table that no sequence holds."""
        return list(self._free[table])

    def version(self, seq_id: int) -> int:
        """Return a number that changes with a sequence's block ids, and that no other state of any sequence has had."""
        return self._versions[seq_id]

    @property
    def num_free(self) -> int:
        """Free blocks of the fullest table."""
        return min(len(free) for free in self._free)

    @property
    def num_unpromised(self) -> int:
        """Free blocks of the fullest table, without those that sequences were promised and do not hold yet."""
        owed = sum(max(0, n - len(self._held[seq_id][0])) for seq_id, n in self._promised.items())
        return self.num_free - owed

    def promise(self, seq_id: int, num_tokens: int) -> None:
        """Let a sequence that holds blocks grow to num_tokens tokens: num_unpromised leaves room for it."""
        assert seq_id in self._held, f"sequence {seq_id} holds no blocks"
        self._promised[seq_id] = self.blocks_for(num_tokens)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def reserve(self, num_tokens: dict[int, int]) -> None:
        """Let each sequence seq_id hold blocks for num_tokens[seq_id] tokens: all of them, or none and OutOfBlocks."""
        missing = {
            seq_id: self.blocks_for(n) - (len(self._held[seq_id][0]) if seq_id in self._held else 0)
            for seq_id, n in num_tokens.items()
        }
        needed = sum(max(0, n) for n in missing.values())
        if needed > self.num_free:
            raise OutOfBlocks(
                f"{counted(needed, 'more block')} of {self.block_size} tokens {'is' if needed == 1 else 'are'} needed, "
                f"{self.num_free} of num_blocks={self.num_blocks} are free: nothing was written; "
                f"free a sequence or give the stage more blocks"
            )
        for seq_id, n in missing.items():
            tables = self._held.setdefault(seq_id, [[] for _ in range(self.num_tables)])
            for table, blocks in enumerate(tables):
                blocks.extend(self.take(table) for _ in range(n))
            if n > 0 or seq_id not in self._versions:
                self._last_version += 1
                self._versions[seq_id] = self._last_version

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Give back the blocks of a sequence that come after those of its first num_tokens tokens."""
        keep = self.blocks_for(num_tokens)
        if len(self._held[seq_id][0]) <= keep:
            return
        for table, blocks in enumerate(self._held[seq_id]):
            for block in reversed(blocks[keep:]):
                self.give_back(table, block)
            del blocks[keep:]
        self._last_version += 1
        self._versions[seq_id] = self._last_version

    def free(self, seq_id: int) -> None:
        """Give back every block of a sequence. Raises KeyError when it holds none."""
        for table, blocks in enumerate(self._held.pop(seq_id)):
            for block in reversed(blocks):
                self.give_back(table, block)
        del self._versions[seq_id]
        self._promised.pop(seq_id, None)

    def take(self, table: int) -> int:
        """Take a free block, for a sequence to hold, and return it. Call it only if num_free says that there is one."""
        return self._free[table].pop()

    def give_back(self, table: int, block: int) -> None:
        """Make a block that a sequence held free again."""
        self._free[table].append(block)

    def check(self) -> None:
        """Check that every block of every table is free once, or held by one sequence once."""
        for table, free in enumerate(self._free):
            blocks = free + [block for tables in self._held.values() for block in tables[table]]
            assert sorted(blocks) == list(range(self.num_blocks)), f"table {table}: blocks lost or owned twice"
