"""StepPool: the queue and the pool of a stage while it computes a step, read from the stage's own tables."""

from __future__ import annotations

from collections import abc
from typing import Any, NamedTuple

from roseinfer.sequence import Sequence


class PoolSize(NamedTuple):
    num_blocks: int
    block_size: int
    max_num_seqs: int


class Holding(NamedTuple):
    """Blocks of one request: their ids, in the order of its tokens. num_cached: tokens in them before the step."""

    blocks: tuple[int, ...]
    num_cached: int


class StepPool(NamedTuple):
    """Queue and pool in a step. Requests are named by their places among the arrivals. held: blocks by request.

    waiting: requests in the queue's order. given_back: how many blocks each request gave back that was preempted for
    this step.
    """

    waiting: tuple[int, ...]
    held: dict[int, Holding]
    given_back: dict[int, int]


class PoolWatch:
    """Reads a stage's queue and pool. queue: a stage from 14 on."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.size = PoolSize(queue.tables.num_blocks, queue.block_size, queue.max_num_seqs)
        self._given_back: dict[int, int] = {}

    @classmethod
    def of(cls, queue: Any) -> PoolWatch | None:
        """Make a watch; None for a queue without block tables of its own, such as an Engine's scheduler."""
        has_both = all(hasattr(queue, name) for name in ("tables", "waiting", "block_size", "max_num_seqs"))
        return cls(queue) if has_both else None

    def num_blocks(self, seq: Sequence) -> int:
        return len(self.queue.tables.of(seq.seq_id, 0))

    def gave_back(self, request: int, num_blocks: int) -> None:
        self._given_back[request] = num_blocks

    def look(self, seqs: abc.Sequence[Sequence]) -> StepPool:
        """Look at queue and pool after a step was scheduled. seqs: those added so far, in the order of their places."""
        tables, given_back = self.queue.tables, self._given_back
        self._given_back = {}
        places = {seq.seq_id: place for place, seq in enumerate(seqs)}
        held = {
            place: Holding(tuple(tables.of(seq.seq_id, 0)), seq.num_launched_tokens)
            for place, seq in enumerate(seqs)
            if seq.seq_id in tables
        }
        return StepPool(tuple(places[seq.seq_id] for seq in self.queue.waiting), held, given_back)
