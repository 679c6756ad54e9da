"""Scheduler: which sequences a step computes, and what becomes of its tokens. Plain Python, no tensor in it."""

from __future__ import annotations

from collections import deque

from roseinfer.sequence import Sequence, finish_reason

from .block_manager import BlockManager


class Scheduler:
    """First come, first served. A sequence joins when a row and its worst case of blocks are free, so a running one
    never finds the pool empty; its whole prompt is computed beside the new tokens of those that run already.

    max_num_tokens: tokens of one step at most. Prompts are not cut: check_fits keeps out what is longer.
    """

    def __init__(self, blocks: BlockManager, max_num_tokens: int, eos_token_ids: tuple[int, ...]) -> None:
        self.blocks = blocks
        self.max_num_seqs = len(blocks.table)
        self.max_num_tokens = max_num_tokens
        self.eos_token_ids = eos_token_ids
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def schedule(self) -> tuple[list[Sequence], list[int]]:
        """The sequences of the next step and how many tokens of each, blocks for them reserved; never empty while
        anything waits or runs. Scheduling again without a commit gives the same step again."""
        self._admit()
        size = self.blocks.block_size
        growing = {seq.seq_id: len(seq) for seq in self.running if seq.num_cached_tokens % size == 0}
        if growing:
            self.blocks.reserve(growing)
        return list(self.running), [len(seq) - seq.num_cached_tokens for seq in self.running]

    def commit(self, seqs: list[Sequence], num_new: list[int], tokens: list[int]) -> None:
        """Append each sequence's token. One that it finishes gives back its blocks."""
        finished = False
        for seq, n, token in zip(seqs, num_new, tokens, strict=True):
            seq.num_cached_tokens += n
            seq.append(token)
            seq.finish_reason = finish_reason(seq, self.eos_token_ids)
            if seq.finish_reason:
                self._release(seq)
                finished = True
        if finished:
            self.running = [seq for seq in self.running if not seq.finish_reason]

    def abort(self, seq: Sequence) -> None:
        """End a sequence that waits or runs, and give back its blocks. Raises ValueError for any other."""
        if seq in self.running:
            self.running.remove(seq)
            self._release(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        else:
            raise ValueError(f"sequence {seq.seq_id} neither waits nor runs here: it has ended, or was never added")
        seq.finish_reason = "abort"

    def _admit(self) -> None:
        num_tokens = sum(len(seq) - seq.num_cached_tokens for seq in self.running)
        while self.waiting and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            num_tokens += len(seq)
            longest = seq.max_len - 1  # the last token is returned, never cached
            if self.blocks.blocks_for(longest) > self.blocks.num_unpromised:
                return
            if num_tokens > self.max_num_tokens and self.running:
                return
            self.running.append(self.waiting.popleft())
            self.blocks.hold(seq.seq_id, [])
            self.blocks.promise(seq.seq_id, longest)

    def _release(self, seq: Sequence) -> None:
        self.blocks.free(seq.seq_id)
        seq.num_cached_tokens = 0
