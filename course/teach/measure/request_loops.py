"""Loops for a stage without a queue: two loops that take requests at any time and run one forward a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import check_startable, commit, has_room
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage


class RequestLoop(ABC):
    """Loop with stage 14's add, step and has_work, over a stage that has only prefill and decode.

    A step is one forward: one prompt, or one token of each sequence that runs. Any stage will do; it is not changed.
    """

    name: str

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.max_num_seqs = stage.max_num_seqs
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, seq: Sequence) -> None:
        """Add a sequence to the queue. Raises ValueError if it could never run to its end, or is here already."""
        if seq in self.waiting:
            raise ValueError(f"sequence {seq.seq_id} waits already")
        check_startable(self.stage, [seq])
        self.waiting.append(seq)

    def abort(self, seq: Sequence) -> None:
        """End a sequence that waits or runs."""
        (self.waiting if seq in self.waiting else self.running).remove(seq)
        if self.stage.holds(seq):
            self.stage.free(seq)
        seq.finish_reason = "abort"

    def step(self) -> list[Sequence]:
        """Run one forward; return the sequences that have one token more."""
        seqs, num_new = self.schedule()
        return self.commit(seqs, self.run(seqs, num_new))

    def schedule(self) -> tuple[list[Sequence], list[int]]:
        """Choose the sequences of the next step and how many tokens of each.

        Raises OutOfBlocks when blocks are held that no sequence here can give back.
        """
        if self.waiting and self.may_join(self.waiting[0]):
            return [self.waiting[0]], [len(self.waiting[0])]
        if self.waiting and not self.running:
            raise OutOfBlocks(f"sequence {self.waiting[0].seq_id} cannot start: others hold the blocks it needs")
        return list(self.running), [1] * len(self.running)

    @abstractmethod
    def may_join(self, seq: Sequence) -> bool: ...

    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        if seqs[0] not in self.waiting:
            return self.stage.next_tokens(seqs)
        tokens = self.stage.first_tokens(seqs)
        self.stage.tables.promise(seqs[0].seq_id, seqs[0].max_len - 1)  # the last token is returned, never cached
        self.running.append(self.waiting.popleft())
        return tokens

    def commit(self, seqs: list[Sequence], tokens: list[int]) -> list[Sequence]:
        commit(self.stage, seqs, tokens)
        self.running = [seq for seq in self.running if not seq.finish_reason]
        return seqs


class PromptByPrompt(RequestLoop):
    """Loop of roseinfer.generate: a request joins, with its own forward, once a slot and all its blocks are free.

    These are the blocks for the longest that it may become.
    """

    name = "prompt by prompt"

    def may_join(self, seq: Sequence) -> bool:
        return has_room(self.stage, seq)


class StaticBatches(RequestLoop):
    """Loop in which as many requests as fit begin together; none joins until the last of them has ended."""

    name = "static batches"
    is_open = False  # until its sequences decode, others may join the batch

    def may_join(self, seq: Sequence) -> bool:
        return (self.is_open or not self.running) and has_room(self.stage, seq)

    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        self.is_open = seqs[0] in self.waiting
        return super().run(seqs, num_new)
