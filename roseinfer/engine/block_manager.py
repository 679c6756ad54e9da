"""BlockManager: which sequences hold which blocks of the pool. One table per sequence, which all layers share.

A block is free, or it is idle: it stands in no table, and the prefix cache can find it; or it is held, and ref_counts
says how many tables it stands in. A new block comes from the free list; if that is empty, the block that has been idle
longest is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roseinfer.arguments import counted
from roseinfer.blocks import OutOfBlocks
from roseinfer.sequence import Sequence

from .interrupts import deferred_interrupts
from .prefix_cache import Entry, PrefixCache

# A sequence joins only if this leaves a free block for each so many that run, as far as they can grow: the first to be
# preempted for it is the sequence that has just joined, whose prompt was then computed for nothing.
SEQS_PER_SPARE_BLOCK = 8


class BlockManager:
    """num_blocks blocks of block_size tokens, for max_num_seqs sequences of at most max_blocks blocks each.

    table [max_num_seqs, max_blocks] int32 is what attention reads: row `rows[seq_id]` names the sequence's blocks in
    token order. An entry is written when its block is handed out, so a step that needs no block writes nothing.
    prefix_cache: None where every sequence computes all of its blocks itself. copies: {block: block whose contents it
    needs before the next step}. num_in_draft: tokens of each block, from its first one on, that a draft model has
    computed in its own pool, since the block was handed out. Answers the questions that BlockTables answers, as a pool
    with one table.
    """

    num_tables = 1

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_blocks: int,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.table = np.zeros((max_num_seqs, max_blocks), np.int32)
        self.ref_counts = [0] * num_blocks
        self.prefix_cache = prefix_cache
        self.copies: dict[int, int] = {}
        self.num_in_draft = [0] * num_blocks
        self._idle = prefix_cache.idle if prefix_cache else {}
        # Popped from the end, so that block 0 is handed out first and a freed block is reused while caches know it.
        self._free = list(reversed(range(num_blocks)))
        self._free_rows = list(reversed(range(max_num_seqs)))
        self.rows: dict[int, int] = {}  # of sequences by seq_id, in the order in which they came
        self._blocks: dict[int, list[int]] = {}
        self._chains: dict[int, list[Entry]] = {}  # entries of a sequence's blocks, from its first one on
        self._owed: dict[int, int] = {}  # blocks that a sequence may need and does not hold yet
        self._num_owed = 0

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self.rows

    def __len__(self) -> int:
        """Return the number of sequences that hold a row."""
        return len(self.rows)

    @property
    def num_free(self) -> int:
        """Blocks that stand in no table, the idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_unpromised(self) -> int:
        """Free blocks without those that sequences were promised and do not hold yet."""
        return self.num_free - self._num_owed

    @property
    def seq_ids(self) -> list[int]:
        """Sequences that hold a row, in the order in which they came."""
        return list(self.rows)

    def free_blocks(self, table: int = 0) -> list[int]:
        return [*self._free, *self._idle]

    def of(self, seq_id: int, table: int = 0) -> list[int]:
        """Return the block ids of one sequence, in token order."""
        return self._blocks[seq_id]

    def write_rows(self, seqs: list[Sequence], out: np.ndarray) -> list[list[int]]:
        """Copy these sequences' rows of the table to out [B, max_blocks]. Return their block ids."""
        # "clip": rows are in range, and without the check NumPy writes to `out` without a buffer between.
        np.take(self.table, [self.rows[seq.seq_id] for seq in seqs], axis=0, out=out, mode="clip")
        return [self._blocks[seq.seq_id] for seq in seqs]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def promise(self, seq_id: int, num_tokens: int) -> None:
        """Let a sequence that holds a row grow to num_tokens tokens.

        num_unpromised leaves room for all of them; `admit` promises more than there is, and leaves room for a part.
        """
        self._num_owed -= self._owed.get(seq_id, 0)
        self._owed[seq_id] = max(0, self.blocks_for(num_tokens) - len(self._blocks[seq_id]))
        self._num_owed += self._owed[seq_id]

    def reserve(self, num_tokens: dict[int, int]) -> None:
        """Hand each sequence seq_id blocks for num_tokens[seq_id] tokens: all of them, or none and OutOfBlocks."""
        missing = {
            seq_id: self.blocks_for(n) - len(self._blocks[seq_id] if seq_id in self._blocks else ())
            for seq_id, n in num_tokens.items()
        }
        needed = sum(max(0, n) for n in missing.values())
        if needed > self.num_free:
            raise OutOfBlocks(
                f"{counted(needed, 'more block')} of {self.block_size} tokens {'is' if needed == 1 else 'are'} needed, "
                f"{self.num_free} of num_blocks={self.num_blocks} are free: nothing was written; "
                f"free a sequence or make the pool larger"
            )
        with deferred_interrupts():
            for seq_id, n in missing.items():
                self.hold(seq_id, [self._take() for _ in range(n)])

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Give back the blocks of a sequence beyond those for num_tokens tokens, which its drafts needed.

        The sequence may need them again. They stand in no other table, and the prefix cache does not know them.
        """
        kept = self.blocks_for(num_tokens)
        surplus = self._blocks[seq_id][kept:]
        if not surplus:
            return
        with deferred_interrupts():
            del self._blocks[seq_id][kept:]
            for block in reversed(surplus):
                self._release(block)
            self._owed[seq_id] += len(surplus)
            self._num_owed += len(surplus)

    def share(self, seq_id: int, blocks: Iterable[int]) -> None:
        """Make blocks that are idle, or that other tables hold, the next ones of this sequence, too."""
        blocks = list(blocks)
        free = [block for block in blocks if not self.ref_counts[block] and block not in self._idle]
        assert not free, f"a free block cannot be shared: {free}"
        for block in blocks:
            self._idle.pop(block, None)
        self.hold(seq_id, blocks)

    def hold(self, seq_id: int, blocks: list[int]) -> None:
        """Write blocks after those that the sequence holds; a new sequence gets a row first."""
        if seq_id not in self.rows:
            self.rows[seq_id] = self._free_rows.pop()
            self._blocks[seq_id] = []
        held = self._blocks[seq_id]
        self.table[self.rows[seq_id], len(held) : len(held) + len(blocks)] = blocks
        held.extend(blocks)
        for block in blocks:
            self.ref_counts[block] += 1
        paid = min(len(blocks), self._owed.get(seq_id, 0))
        if paid:
            self._owed[seq_id] -= paid
            self._num_owed -= paid

    def free(self, seq_id: int) -> None:
        """Give back the row of a sequence, and every block that stands in no other table. KeyError when it has none."""
        with deferred_interrupts():
            self._free_rows.append(self.rows.pop(seq_id))
            self._num_owed -= self._owed.pop(seq_id, 0)
            self._chains.pop(seq_id, None)
            if self.prefix_cache:
                self.prefix_cache.unclaim(seq_id)
            # From the end, so that of a text that becomes idle the end is evicted before its beginning.
            for block in reversed(self._blocks.pop(seq_id)):
                self._release(block)

    # What sequences share

    def admit(self, seq: Sequence) -> int | None:
        """Give a sequence that need not wait a row and blocks for all its tokens; return how many are cached already.

        The cached tokens are in blocks that it shares; at least one token is left to compute. Return None, and change
        nothing, when the pool has too few blocks.
        """
        blocks, num_cached, chain = self._computed(seq)
        if not self._has_room(seq, blocks, num_cached):
            blocks = blocks[: num_cached // self.block_size]  # the last one, to be copied, is computed again
            num_cached = len(blocks) * self.block_size
            if not self._has_room(seq, blocks, num_cached):
                return None
        self.share(seq.seq_id, blocks)
        if num_cached % self.block_size:
            self._copy_last(seq.seq_id)
        self.reserve({seq.seq_id: len(seq)})
        self.promise(seq.seq_id, seq.max_len - 1)
        self._chains[seq.seq_id] = chain
        if self.prefix_cache:
            self.prefix_cache.claim(seq, num_cached // self.block_size)
            self.prefix_cache.num_asked_tokens += len(seq)
            self.prefix_cache.num_found_tokens += num_cached
        return num_cached

    def must_wait(self, seq: Sequence) -> bool:
        """Whether a sequence that runs is computing blocks that this one could share."""
        parent = seq.parent
        if parent and parent.seq_id in self and parent.num_cached_tokens < parent.num_prompt_tokens:
            return True
        return self.prefix_cache is not None and self.prefix_cache.is_being_computed(seq)

    def copy_first(self, copies: dict[int, int]) -> None:
        """Put back copies that were taken and not made, as if they had come before the others."""
        self.copies = copies | {block: copies.get(source, source) for block, source in self.copies.items()}

    def forget_idle(self) -> None:
        """Remove all idle blocks from the prefix cache; they become free."""
        while self._idle:
            self._free.append(self._evicted())

    def keep_computed(self, seq: Sequence, is_proven: bool = True) -> None:
        """Let the prefix cache find the blocks that are full of cached tokens. is_proven: they led to finite logits."""
        if not self.prefix_cache:
            return
        self._put_computed(seq, self.prefix_cache)
        if is_proven and self.prefix_cache.unproven:
            self.prefix_cache.unproven.difference_update(self._chains[seq.seq_id])

    def forget_unproven(self, seq_id: int) -> None:
        """Make the blocks that a sequence was reading its prompt from, and that may hold NaN, impossible to find."""
        cache = self.prefix_cache
        if cache is None:
            return
        for entry in self._chains[seq_id]:
            if entry in cache.unproven:
                self._free += cache.forget(entry)  # with those after it in the chain
                return

    def _put_computed(self, seq: Sequence, cache: PrefixCache) -> None:
        blocks, chain = self._blocks[seq.seq_id], self._chains[seq.seq_id]
        for i in range(len(chain), seq.num_cached_tokens // self.block_size):
            entry = cache.put(seq, i, blocks[i], chain[-1] if chain else None)
            if not entry:
                return
            chain.append(entry)

    def _computed(self, seq: Sequence) -> tuple[list[int], int, list[Entry]]:
        """Return blocks that hold a sequence's beginning, how many of its tokens, and the full blocks' entries.

        They come from the prefix cache, or from the sequence whose prompt it shares. There a block that is not full is
        of use, too: like every running sequence, that one writes only after what it has written.
        """
        chain = self.prefix_cache.find(seq) if self.prefix_cache else []
        num_cached = min(len(chain) * self.block_size, len(seq) - 1)
        blocks = [entry.block for entry in chain[: self.blocks_for(num_cached)]]
        parent = seq.parent
        if parent and parent.seq_id in self:
            shared = min(parent.num_prompt_tokens, len(seq) - 1)
            if shared > num_cached:
                blocks, num_cached = self._blocks[parent.seq_id][: self.blocks_for(shared)], shared
                chain = self._chains[parent.seq_id]
        return blocks, num_cached, chain[: num_cached // self.block_size]

    def _has_room(self, seq: Sequence, blocks: list[int], num_cached: int) -> bool:
        copied = num_cached % self.block_size > 0
        new = self.blocks_for(len(seq)) - len(blocks) + copied
        idle = sum(block in self._idle for block in blocks)
        spare = min(len(self) // SEQS_PER_SPARE_BLOCK, self._num_owed)
        return new + idle + spare <= self.num_free

    def _copy_last(self, seq_id: int) -> None:
        """Copy on write: the last block of a table is replaced by one of its own, with the same contents."""
        held, copy = self._blocks[seq_id], self._take()
        source, held[-1] = held[-1], copy
        self.table[self.rows[seq_id], len(held) - 1] = copy
        self.ref_counts[copy] = 1
        self.copies[copy] = self.copies.get(source, source)
        self._release(source)

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._evicted()
        self.num_in_draft[block] = 0
        return block

    def _evicted(self) -> int:
        assert self.prefix_cache is not None, "blocks are idle only in a prefix cache"
        return self.prefix_cache.evict()

    def _release(self, block: int) -> None:
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            if self.prefix_cache and block in self.prefix_cache.of_block:
                self._idle[block] = None
            else:
                self._free.append(block)

    def check(self) -> None:
        """Check that each block is free once, idle, or in ref_counts[block] tables, and each row is held or free."""
        held = [0] * self.num_blocks
        for seq_id, blocks in self._blocks.items():
            assert self.table[self.rows[seq_id], : len(blocks)].tolist() == blocks, f"row of sequence {seq_id}"
            for block in blocks:
                held[block] += 1
        wrong = [block for block in range(self.num_blocks) if held[block] != self.ref_counts[block]]
        assert not wrong, f"ref_counts are not the number of tables that a block stands in: blocks {wrong}"
        unheld = [block for block, count in enumerate(held) if count == 0]
        assert sorted([*self._free, *self._idle]) == unheld, "blocks lost, or free twice"
        assert sorted([*self._free_rows, *self.rows.values()]) == list(range(len(self.table))), "rows lost"
        assert all(0 <= n <= self.block_size for n in self.num_in_draft), (
            "more tokens in the draft's pool than a block has"
        )
        assert self._chains.keys() <= self.rows.keys(), "chains lost"
        if self.prefix_cache:
            self.prefix_cache.check()
            found = {entry.block for entry in self.prefix_cache.entries.values()}
            assert found.isdisjoint(self._free), "a free block can be found"
        assert self._num_owed == sum(self._owed.values()) and self._owed.keys() <= self.rows.keys(), "promises lost"
