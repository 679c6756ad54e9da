"""BlockManager: whether a sequence may join, which blocks it shares, and how far it may grow.

BlockTable has the rows that attention reads, BlockPool the blocks that are free, PrefixCache the texts of full blocks.
"""

from __future__ import annotations

from roseinfer.arguments import counted
from roseinfer.blocks import OutOfBlocks
from roseinfer.sequence import Sequence

from .block_pool import BlockPool
from .block_table import BlockTable
from .calls import deferred_interrupts
from .prefix_cache import Entry, PrefixCache

# A sequence joins only if this leaves a free block for each so many that run, as far as they can grow: the first to be
# preempted for it is the sequence that has just joined, whose prompt was then computed for nothing.
SEQS_PER_SPARE_BLOCK = 8


class BlockManager:
    """num_blocks blocks of block_size tokens, for max_num_seqs sequences of at most max_blocks blocks each.

    prefix_cache: None where only the samples of one prompt share blocks. Answers the questions that BlockTables
    answers, as a pool with one table.
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
        self.num_blocks, self.block_size = num_blocks, block_size
        self.table = BlockTable(max_num_seqs, max_blocks)
        self.pool = BlockPool(num_blocks, prefix_cache)
        self.prefix_cache = prefix_cache
        self._num_owed = 0  # of all sequences

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self.table.held

    def __len__(self) -> int:
        """Return the number of sequences that hold a row."""
        return len(self.table.held)

    @property
    def num_free(self) -> int:
        """Blocks that stand in no table, the idle ones included."""
        return self.pool.num_free

    @property
    def num_unpromised(self) -> int:
        """Free blocks without those that sequences were promised and do not hold yet."""
        return self.num_free - self._num_owed

    @property
    def seq_ids(self) -> list[int]:
        """Sequences that hold a row, in the order in which they came."""
        return list(self.table.held)

    def free_blocks(self, table: int = 0) -> list[int]:
        return [*self.pool.free, *self.pool.idle]

    def of(self, seq_id: int, table: int = 0) -> list[int]:
        """Return the block ids of one sequence, in token order."""
        return self.table.held[seq_id].blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def promise(self, seq_id: int, num_tokens: int) -> None:
        """Let a sequence that holds a row grow to num_tokens tokens.

        num_unpromised leaves room for all of them; `admit` promises more than there is, and leaves room for a part.
        """
        self._owe(seq_id, max(0, self.blocks_for(num_tokens) - len(self.of(seq_id))))

    def reserve(self, num_tokens: dict[int, int]) -> None:
        """Hand each sequence seq_id blocks for num_tokens[seq_id] tokens: all of them, or none and OutOfBlocks."""
        missing = {
            seq_id: self.blocks_for(n) - len(self.of(seq_id) if seq_id in self else ())
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
                self._hold(seq_id, [self.pool.take() for _ in range(n)])

    def share(self, seq_id: int, blocks: list[int]) -> None:
        """Make blocks that are idle, or that other tables hold, the next ones of this sequence, too."""
        self.pool.share(blocks)
        self._hold(seq_id, blocks)

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Give back the blocks of a sequence beyond those for num_tokens tokens, which its drafts needed.

        The sequence may need them again. They stand in no other table, and the prefix cache does not know them.
        """
        held = self.table.held[seq_id]
        kept = self.blocks_for(num_tokens)
        if surplus := held.blocks[kept:]:
            with deferred_interrupts():
                del held.blocks[kept:]
                self.pool.release(surplus)
                self._owe(seq_id, held.num_owed + len(surplus))

    def free(self, seq_id: int) -> None:
        """Give back the row of a sequence, and every block that stands in no other table. KeyError when it has none."""
        with deferred_interrupts():
            held = self.table.remove(seq_id)
            self._num_owed -= held.num_owed
            if self.prefix_cache:
                self.prefix_cache.unclaim(held.claimed)
            self.pool.release(held.blocks)

    # What sequences share

    def admit(self, seq: Sequence) -> int | None:
        """Give a sequence that need not wait a row and blocks for all its tokens; return how many are cached already.

        The cached tokens are in blocks that it shares; at least one token is left to compute. Return None, and change
        nothing, when the pool has too few blocks.
        """
        # 1. Find the blocks that hold its beginning, and ask whether the pool has the others.
        blocks, num_cached, chain = self._computed(seq)
        if not self._has_room(seq, blocks, num_cached):
            blocks = blocks[: num_cached // self.block_size]  # the last one, to be copied, is computed again
            num_cached = len(blocks) * self.block_size
            if not self._has_room(seq, blocks, num_cached):
                return None
        # 2. Share them. A block that is not full is copied: the sequence is going to write there.
        self.share(seq.seq_id, blocks)
        if num_cached % self.block_size:
            copy = self.pool.take()
            source = self.table.replace_last(seq.seq_id, copy)
            self.pool.copy(source, copy)
            self.pool.release([source])
        # 3. Take blocks for the rest of its tokens, and promise those that it may grow to.
        self.reserve({seq.seq_id: len(seq)})
        self.promise(seq.seq_id, seq.max_len - 1)
        held = self.table.held[seq.seq_id]
        held.chain = chain
        # 4. Let others wait for what it computes.
        if self.prefix_cache:
            held.claimed = self.prefix_cache.claim(seq, num_cached // self.block_size)
            self.prefix_cache.num_asked_tokens += len(seq)
            self.prefix_cache.num_found_tokens += num_cached
        return num_cached

    def must_wait(self, seq: Sequence) -> bool:
        """Whether a sequence that runs is computing blocks that this one could share."""
        parent = seq.parent
        if parent and parent.seq_id in self and parent.num_cached_tokens < parent.num_prompt_tokens:
            return True
        return self.prefix_cache is not None and self.prefix_cache.is_being_computed(seq)

    def keep_computed(self, seq: Sequence, is_proven: bool = True) -> None:
        """Let the prefix cache find the blocks that are full of cached tokens. is_proven: they led to finite logits."""
        cache, held = self.prefix_cache, self.table.held[seq.seq_id]
        if not cache:
            return
        chain = held.chain
        for i in range(len(chain), seq.num_cached_tokens // self.block_size):
            entry = cache.put(seq, i, held.blocks[i], chain[-1] if chain else None)
            if not entry:
                break
            chain.append(entry)
        if is_proven and cache.unproven:
            cache.unproven.difference_update(chain)

    def forget_unproven(self, seq_id: int) -> None:
        """Make the blocks that a sequence was reading its prompt from, and that may hold NaN, impossible to find."""
        if cache := self.prefix_cache:
            entry = next((entry for entry in self.table.held[seq_id].chain if entry in cache.unproven), None)
            if entry:
                self.pool.forget(entry)

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
                held = self.table.held[parent.seq_id]
                blocks, num_cached, chain = held.blocks[: self.blocks_for(shared)], shared, held.chain
        return blocks, num_cached, chain[: num_cached // self.block_size]

    def _has_room(self, seq: Sequence, blocks: list[int], num_cached: int) -> bool:
        copied = num_cached % self.block_size > 0
        new = self.blocks_for(len(seq)) - len(blocks) + copied
        idle = sum(block in self.pool.idle for block in blocks)
        spare = min(len(self) // SEQS_PER_SPARE_BLOCK, self._num_owed)
        return new + idle + spare <= self.num_free

    def _hold(self, seq_id: int, blocks: list[int]) -> None:
        """Write blocks to a sequence's row, and take those that it was promised off what is owed."""
        held = self.table.extend(seq_id, blocks)
        if held.num_owed:
            self._owe(seq_id, max(0, held.num_owed - len(blocks)))

    def _owe(self, seq_id: int, num_blocks: int) -> None:
        held = self.table.held[seq_id]
        self._num_owed += num_blocks - held.num_owed
        held.num_owed = num_blocks

    def check(self) -> None:
        """Check the table, the pool and the prefix cache, and that what is owed is the sum of the promises."""
        self.table.check()
        self.pool.check([held.blocks for held in self.table.held.values()], self.block_size)
        assert self._num_owed == sum(held.num_owed for held in self.table.held.values()), "promises lost"
