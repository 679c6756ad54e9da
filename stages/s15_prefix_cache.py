"""Stage 15, prefix cache: K and V of a text that was computed before are found by its blocks, and shared.

What was slow:  every request computes its whole prompt. In a chat all requests begin with the same system prompt, and
                each turn begins with all turns before it; n samples share one prompt. The same K and V are computed
                again and again, and stored as often. A preempted sequence computes all of its text again.
The change:     a full block gets a key, a hash over its tokens and the key of the block before it: one key for one
                text. Once the block is computed, its key finds it. A request that joins shares the blocks of its
                prefix, and computes the rest. A block may be in many tables; ref_counts counts them. At 0 it is idle:
                still found, and evicted when no block is free, the least recently used first.
What it gives:  a prefix that is found costs no forward and no budget, and the first token comes after one step. Its
                blocks are stored once. A preempted sequence finds its own blocks, unless they were evicted.
Where it loses: where texts have no common prefix, all keys are computed for nothing. Only full blocks are found, and
                only after the step that computed them: equal prompts that join in one step are all computed.

At least one token is always computed, since the next token needs logits. Its K and V need a block of its own: where
the found part ends within a block, that block is copied (copy-on-write). Two texts with equal keys would share K and V;
for sha256 no such pair is known. The first seam (prefill, decode, free) shares nothing.
Shared blocks and copy-on-write: vLLM (Kwon et al., 2023), as are chained keys and eviction from the end of a text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from hashlib import sha256
from itertools import takewhile

import torch

from roseinfer.blocks import BlockTables
from roseinfer.models import Model
from roseinfer.sequence import Sequence

from .s14_token_budget import TokenBudget


class SharedTables(BlockTables):
    """One block table whose blocks several sequences may hold, and which finds computed blocks by their keys.

    ref_counts: sequences that hold each block. block_of, key_of: of the blocks that can be found. idle: those of them
    that no sequence holds, the least recently used first; num_free and free_blocks include them.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(1, num_blocks, block_size)
        self.ref_counts = [0] * num_blocks
        self.block_of: dict[bytes, int] = {}
        self.key_of: dict[int, bytes] = {}
        self.idle: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        return super().num_free + len(self.idle)

    def free_blocks(self, table: int) -> list[int]:
        return super().free_blocks(table) + list(self.idle)

    def share(self, seq_id: int, blocks: list[int]) -> None:
        """Let a sequence without blocks hold these, which are idle or held by others. Call reserve next."""
        self._held[seq_id] = [list(blocks)]
        for block in blocks:
            self.ref_counts[block] += 1
            self.idle.pop(block, None)

    def put(self, key: bytes, block: int) -> None:
        """Register a held block under its key."""
        self.block_of[key], self.key_of[block] = block, key

    def take(self, table: int) -> int:
        block = super().take(table) if super().num_free else self.evict()
        self.ref_counts[block] = 1
        return block

    def give_back(self, table: int, block: int) -> None:
        """Called from a sequence's last block to its first, so the end of a text is evicted first."""
        self.ref_counts[block] -= 1
        if block in self.key_of and not self.ref_counts[block]:
            self.idle[block] = None
        elif not self.ref_counts[block]:
            super().give_back(table, block)

    def evict(self) -> int:
        """Free the least recently used idle block."""
        block = next(iter(self.idle))
        del self.idle[block], self.block_of[self.key_of.pop(block)]
        return block

    def check(self) -> None:
        """Every block is free, idle, or held by as many sequences as ref_counts says; no free block has a key."""
        held = Counter(block for [blocks] in self._held.values() for block in blocks)
        assert [held[block] for block in range(self.num_blocks)] == self.ref_counts, "ref_counts are not who holds it"
        assert sorted([*self.free_blocks(0), *held]) == list(range(self.num_blocks)), "blocks lost, or owned twice"
        assert {block: key for key, block in self.block_of.items()} == self.key_of, "keys and blocks differ"
        assert self.key_of.keys() == self.idle.keys() | (self.key_of.keys() & held), "found, though free"
        assert self.idle.keys() <= self.key_of.keys(), "idle, and never found"


class PrefixCache(TokenBudget):
    """TokenBudget whose sequences share the blocks of common prefixes.

    num_asked_tokens, num_found_tokens: of all sequences, counted each time that one joined. copies: {block: block
    whose contents it needs before the next step}. Override block_key to change what counts as the same text.
    """

    name = "s15_prefix_cache"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, **sizes: int | None) -> None:
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, **sizes)
        self.tables = SharedTables(num_blocks, block_size)
        self.copies: dict[int, int] = {}
        self.num_asked_tokens = self.num_found_tokens = 0

    @staticmethod
    def block_key(before: bytes, token_ids: list[int]) -> bytes:
        """Key of a full block: sha256 over the key of the block before it (b"" for the first) and its own tokens."""
        return sha256(before + array("q", token_ids).tobytes()).digest()

    def keys(self, seq: Sequence, num_blocks: int) -> list[bytes]:
        """Keys of a sequence's first blocks. The sequence keeps them, so that no token is hashed twice."""
        keys, size = seq.block_keys, self.block_size
        for i in range(len(keys), num_blocks):
            keys.append(self.block_key(keys[-1] if keys else b"", seq.token_ids[i * size : (i + 1) * size]))
        return keys[:num_blocks]

    def add(self, seq: Sequence) -> None:
        super().add(seq)
        seq.block_keys.clear()  # another stage's blocks may have had another size

    def find(self, seq: Sequence) -> tuple[list[int], int]:
        """Blocks that hold a prefix of a sequence, and how many of its tokens they cache: never all.

        They are the cache's, or those of the sequence whose prompt it shares. Then a block that is not full is of use
        too: its holder writes only after the prompt.
        """
        found = map(self.tables.block_of.get, self.keys(seq, len(seq) // self.block_size))
        blocks = list(takewhile(lambda block: block is not None, found))
        num_cached = min(len(blocks) * self.block_size, len(seq) - 1)
        if seq.parent and self.holds(seq.parent):
            of_parent = min(seq.parent.num_prompt_tokens, len(seq) - 1)
            if of_parent > num_cached:
                return self.tables.of(seq.parent.seq_id, 0), of_parent
        return blocks, num_cached

    def admit(self, seq: Sequence) -> bool:
        """Let a waiting sequence run, if max_num_seqs allows it and there are blocks for the tokens that are not found.

        A sequence whose parent is still computing the prompt waits, and so do those after it.
        """
        parent = seq.parent
        if parent and self.holds(parent) and parent.num_cached_tokens < parent.num_prompt_tokens:
            return False
        blocks, num_cached = self.find(seq)
        num_full, rest = divmod(num_cached, self.block_size)
        shared = blocks[:num_full]
        needed = self.tables.blocks_for(len(seq)) - num_full + sum(block in self.tables.idle for block in shared)
        if len(self.tables) == self.max_num_seqs or needed > self.tables.num_free:
            return False
        self.tables.share(seq.seq_id, shared)
        self.tables.reserve({seq.seq_id: len(seq)})
        if rest:
            own = self.tables.of(seq.seq_id, 0)[num_full]
            self.copies[own] = self.copies.get(blocks[num_full], blocks[num_full])
        seq.num_cached_tokens = num_cached
        self.waiting.remove(seq)
        self.running.append(seq)
        self.num_asked_tokens += len(seq)
        self.num_found_tokens += num_cached
        return True

    @torch.inference_mode()
    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        if self.copies:  # all are read before one is written, and before the step writes
            self.pool[:, :, list(self.copies)] = self.pool[:, :, list(self.copies.values())]
            self.copies.clear()
        return super().run(seqs, num_new)

    def commit(self, seqs: list[Sequence], tokens: list[int]) -> list[Sequence]:
        """Register the step's full blocks under their keys."""
        for seq in seqs:
            n, blocks = seq.num_cached_tokens // self.block_size, self.tables.of(seq.seq_id, 0)
            keys = self.keys(seq, n)
            while n and keys[n - 1] not in self.tables.block_of:
                n -= 1
                self.tables.put(keys[n], blocks[n])
        return super().commit(seqs, tokens)
