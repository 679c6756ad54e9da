"""BlockPool: which blocks are free, idle or held.

A block is free, or it is idle: it stands in no table, and the prefix cache can find it; or it is held, and ref_counts
says how many tables it stands in. A new block comes from the free list; if that is empty, the block that has been idle
longest is evicted.
"""

from __future__ import annotations

from .prefix_cache import Entry, PrefixCache


class BlockPool:
    """The blocks from 0 to num_blocks - 1. prefix_cache: None where no block is found again.

    copies: {block: block whose contents it needs before the next step}. num_in_draft: tokens of each block, from its
    first one on, that a draft model has computed in its own pool, since the block was handed out.
    """

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache | None) -> None:
        self.prefix_cache = prefix_cache
        self.ref_counts = [0] * num_blocks
        self.copies: dict[int, int] = {}
        self.num_in_draft = [0] * num_blocks
        self.idle = prefix_cache.idle if prefix_cache else {}
        # Popped from the end, so that block 0 is handed out first and a freed block is reused while caches know it.
        self.free = list(reversed(range(num_blocks)))

    @property
    def num_free(self) -> int:
        """Blocks that stand in no table, the idle ones included."""
        return len(self.free) + len(self.idle)

    def take(self) -> int:
        """Return a block for a table: a free one, or the one that is evicted."""
        block = self.free.pop() if self.free else self._evicted()
        self.num_in_draft[block] = 0
        self.ref_counts[block] = 1
        return block

    def share(self, blocks: list[int]) -> None:
        """Count one more table for blocks that are idle, or that other tables hold."""
        free = [block for block in blocks if not self.ref_counts[block] and block not in self.idle]
        assert not free, f"a free block cannot be shared: {free}"
        for block in blocks:
            self.idle.pop(block, None)
            self.ref_counts[block] += 1

    def release(self, blocks: list[int]) -> None:
        """Count one table less for each block, from the last one on.

        So of a text that becomes idle the end is evicted before its beginning.
        """
        for block in reversed(blocks):
            self.ref_counts[block] -= 1
            if self.ref_counts[block]:
                continue
            if self.prefix_cache and block in self.prefix_cache.of_block:
                self.idle[block] = None
            else:
                self.free.append(block)

    def copy(self, source: int, to: int) -> None:
        """Let a block have the contents of another one before the next step."""
        self.copies[to] = self.copies.get(source, source)

    def copy_first(self, copies: dict[int, int]) -> None:
        """Put back copies that were taken and not made, as if they had come before the others."""
        self.copies = copies | {block: copies.get(source, source) for block, source in self.copies.items()}

    def forget(self, entry: Entry) -> None:
        """Make a block impossible to find, with those after it in the text. Idle ones become free."""
        assert self.prefix_cache is not None, "entries are a prefix cache's"
        self.free += self.prefix_cache.forget(entry)

    def forget_idle(self) -> None:
        """Remove all idle blocks from the prefix cache; they become free."""
        while self.idle:
            self.free.append(self._evicted())

    def _evicted(self) -> int:
        assert self.prefix_cache is not None, "blocks are idle only in a prefix cache"
        return self.prefix_cache.evict()

    def check(self, tables: list[list[int]], block_size: int) -> None:
        """Check that each block is free once, idle, or in ref_counts[block] of the tables."""
        held = [0] * len(self.ref_counts)
        for blocks in tables:
            for block in blocks:
                held[block] += 1
        wrong = [block for block, count in enumerate(held) if count != self.ref_counts[block]]
        assert not wrong, f"ref_counts are not the number of tables that a block stands in: blocks {wrong}"
        unheld = [block for block, count in enumerate(held) if count == 0]
        assert sorted([*self.free, *self.idle]) == unheld, "blocks lost, or free twice"
        assert all(0 <= n <= block_size for n in self.num_in_draft), "more tokens in the draft's pool than a block has"
        if self.prefix_cache:
            self.prefix_cache.check()
            assert self.prefix_cache.of_block.keys().isdisjoint(self.free), "a free block can be found"
