"""Stages with a queue that are right, and as unlike those of the course as its interface allows."""

from __future__ import annotations

from collections import deque
from random import Random

from right_stage import Right

from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import check_startable, commit, has_room
from roseinfer.overlap import OwnClock
from stages import Overlap, Policies, PrefixCache, TokenBudget
from stages.s15_prefix_cache import SharedTables


class WholeRequests(Right):
    """No chunks, no budget, no preemption: a request joins when its worst case fits, and its prompt is a step."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.queue, self.batch = deque(), []

    @property
    def has_work(self):
        return bool(self.queue or self.batch)

    def add(self, seq):
        if seq in self.queue or seq in self.batch:
            raise ValueError(f"sequence {seq.seq_id} is here already")
        check_startable(self, [seq])
        self.queue.append(seq)

    def step(self):
        if not self.has_work:
            raise ValueError("nothing to do")
        if self.queue and has_room(self, self.queue[0]):
            seqs = [self.queue[0]]
            tokens = self.first_tokens(seqs)
            self.batch.append(self.queue.popleft())
            self.tables.promise(seqs[0].seq_id, seqs[0].max_len - 1)
        else:
            seqs = list(self.batch)
            tokens = self.next_tokens(seqs)
        commit(self, seqs, tokens)
        self.batch = [seq for seq in self.batch if not seq.finish_reason]
        return seqs

    def next_tokens(self, seqs):
        """After a failed choice everything is computed again: what append has made longer cannot be taken back."""
        try:
            return super().next_tokens(seqs)
        except BaseException:
            self.drop(seqs)
            raise

    def drop(self, seqs):
        for seq in [seq for seq in seqs if seq in self.batch]:
            self.batch.remove(seq)
            self.free(seq)
            self.queue.appendleft(seq)

    def abort(self, seq):
        if seq not in self.queue and seq not in self.batch:
            raise ValueError(f"sequence {seq.seq_id} is not here")
        if seq in self.batch:
            self.batch.remove(seq)
            self.free(seq)
        else:
            self.queue.remove(seq)
        seq.finish_reason = "abort"


class PromptsFirst(TokenBudget):
    """A step has prompts, or a token of each sequence that decodes, but not both."""

    def schedule(self):
        seqs, num_new = super().schedule()
        prompts = [(seq, n) for seq, n in zip(seqs, num_new, strict=True) if n > 1 or not seq.output_ids]
        return tuple(map(list, zip(*prompts, strict=True))) if prompts else (seqs, num_new)


class PreemptsTheShortest(TokenBudget):
    """Except the oldest, the sequence with the fewest tokens pays: it is the cheapest to compute again."""

    def make_room(self):
        before = self.num_preemptions
        for seq in list(self.running):
            while self.holds(seq):
                try:
                    self.tables.reserve({seq.seq_id: len(seq)})
                    break
                except OutOfBlocks:
                    self.preempt(min(self.running[1:] or self.running, key=len))
        return self.num_preemptions > before


class LeavesABlockFree(TokenBudget):
    """Joins only when a block stays free, unless nothing runs."""

    def admit(self, seq):
        has_room = self.tables.blocks_for(len(seq)) < self.tables.num_free
        return (has_room or not self.running) and super().admit(seq)


class KeysAreTexts(PrefixCache):
    """A key is the whole text up to the end of its block, not a hash of it."""

    @staticmethod
    def block_key(before, token_ids):
        return before + b"".join(token.to_bytes(8, "big") for token in token_ids)


class EvictsTheNewest(PrefixCache):
    """Evicts the block that became idle last."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.tables = NewestFirst(self.tables.num_blocks, self.tables.block_size)


class NewestFirst(SharedTables):
    def evict(self):
        block, _ = self.idle.popitem()
        del self.block_of[self.key_of.pop(block)]
        return block


class TakesTurns(Overlap):
    """Ends the step in flight before it plans the next one."""

    def step(self):
        done = super().step()
        try:
            return done + self.finish() if self.in_flight else done
        except BaseException:
            self.drop()
            raise


class OnItsOwnClock(Overlap):
    """A thread computes while the host goes on."""

    def __init__(self, model, **sizes):
        super().__init__(model, device=OwnClock(), **sizes)


class AnyoneNext(Policies):
    """Takes any one of the earliest round of the most important requests."""

    def __init__(self, model, *, policy=None, **sizes):
        rng = Random(0)
        super().__init__(model, policy=policy or (lambda waiting, room: rng.choice(list(waiting))), **sizes)


class SmallDefaults(Policies):
    """Blocks of 32 tokens and four places where nothing else is asked for."""

    def __init__(self, model, *, num_blocks, block_size=32, max_num_seqs=4, **sizes):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, **sizes)


class AllAtOnce(LeavesABlockFree, TakesTurns, EvictsTheNewest, KeysAreTexts):
    """Four of them: whom it lets in, when it ends a step, what it evicts, and how it finds it."""


UNUSUAL_QUEUES = (
    AllAtOnce,
    WholeRequests,
    PromptsFirst,
    PreemptsTheShortest,
    LeavesABlockFree,
    KeysAreTexts,
    EvictsTheNewest,
    TakesTurns,
    OnItsOwnClock,
    AnyoneNext,
    SmallDefaults,
)
