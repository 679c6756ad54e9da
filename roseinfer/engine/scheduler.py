"""Scheduler: which sequences a step computes, how many tokens of each, and what becomes of them. Plain Python."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import count

from roseinfer.sequence import Sequence, finish_reason

from .block_manager import BlockManager
from .policies import ROUND, FirstCome, Place, Policy

Ahead = Mapping[int, int]  # what a step in flight computes: tokens of each sequence by seq_id, in the order of its rows
NOTHING: Ahead = {}
NO_TOKEN = -1  # what a step gives a sequence whose logits are not finite


class Scheduler:
    """Continuous batching (Orca: Yu et al., 2022) under a token budget, prompts in chunks (Sarathi-Serve: Agrawal et
    al., 2024).

    A step has one token of each sequence that decodes, and then, up to max_num_batched_tokens, prompts: of those that
    run, and of those that wait, in the policy's order. So at most the last one is cut, and goes on in the next step.
    A sequence joins when the pool has blocks for all tokens that it has now. When a running one finds the pool empty,
    the youngest is preempted: it gives back its blocks, waits, and is computed again (vLLM: Kwon et al., 2023).

    max_num_batched_tokens: at least max_num_seqs, so that prompts that are not done get some of it in every step.
    """

    def __init__(
        self, blocks: BlockManager, max_num_batched_tokens: int, eos_token_ids: tuple[int, ...],
        policy: Policy | None = None,
    ) -> None:  # fmt: skip
        self.blocks = blocks
        self.max_num_seqs = len(blocks.table)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.eos_token_ids = eos_token_ids
        self.policy = policy or FirstCome()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._waiting: list[Place] = []  # sorted
        self._arrivals: dict[int, int] = {}  # of all that wait or run, by seq_id
        self._next_arrival = count()

    @property
    def waiting(self) -> list[Sequence]:
        """In the policy's order."""
        return [place[-1] for place in self._waiting]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self.running)

    def __contains__(self, seq: Sequence) -> bool:
        """Whether it waits or runs here."""
        return seq.seq_id in self._arrivals

    def add(self, seq: Sequence) -> None:
        self._arrivals[seq.seq_id] = next(self._next_arrival)
        insort(self._waiting, self._place(seq))

    def schedule(self, ahead: Ahead = NOTHING) -> tuple[list[Sequence], list[int]]:
        """The sequences of the next step and how many tokens of each, blocks for them reserved; never empty while
        anything waits or runs. Scheduling again without a commit gives the same step again, and maybe new arrivals.

        ahead: tokens that a step in flight computes, by seq_id; they count as cached, and each sequence as having the
        token that it gets by that. Then a step may be empty: nothing is left to do, or somebody has to be preempted,
        which is for when no step is in flight. So no token that comes is lost.
        """
        if (growing := self._growing(ahead)) and ahead and len(growing) > self.blocks.num_free:
            return [], []
        may_admit = not self._grow(growing, ahead)
        running = [seq for seq in self.running if not self._will_end(seq, ahead)] if ahead else self.running
        seqs = [seq for seq in running if seq.num_cached_tokens + ahead.get(seq.seq_id, 0) >= len(seq.token_ids) - 1]
        num_new = [1] * len(seqs)
        if self._waiting or len(seqs) < len(running):
            room = self.max_num_batched_tokens - len(seqs)
            set_aside: list[Place] = []
            try:
                for seq, cached in self._prompts(may_admit, set_aside, ahead):
                    seqs.append(seq)
                    num_new.append(min(room, len(seq) - cached))
                    room -= num_new[-1]
                    if not room:
                        break
            finally:
                for place in set_aside:
                    insort(self._waiting, place)
        return seqs, num_new

    def commit(self, seqs: list[Sequence], num_new: list[int], tokens: list[int]) -> list[Sequence]:
        """What a step computed is cached; append its tokens, one of each sequence but not of a last one whose prompt is
        cut. A sequence that its token finishes gives back its blocks, and so does one that gets NO_TOKEN: it ends with
        an error. Return those that have a new token or ended.

        A sequence that ended or was preempted since the step was scheduled gets nothing: its token is dropped.
        """
        assert len(seqs) - 1 <= len(tokens) <= len(seqs), f"{len(tokens)} tokens for {len(seqs)} sequences"
        held, size = self.blocks.rows, self.blocks.block_size
        done, ended = [], []
        for seq, n, token in zip(seqs, num_new, [*tokens, None], strict=False):
            if seq.seq_id not in held:
                continue
            seq.num_cached_tokens += n
            if token == NO_TOKEN:
                self.blocks.forget_unproven(seq.seq_id)
                seq.finish_reason, seq.error = "error", not_finite(seq)
                done.append(seq)
                ended.append(seq)
                continue
            if n > 1 or not seq.num_cached_tokens % size:
                self.blocks.keep_computed(seq, is_proven=token is not None)
            if token is None:
                continue
            seq.append(token)
            done.append(seq)
            if reason := finish_reason(seq, self.eos_token_ids):
                seq.finish_reason = reason
                ended.append(seq)
        for seq in ended:
            self.blocks.free(seq.seq_id)
            self._end(seq)
        if ended:
            self.running = [seq for seq in self.running if not seq.finish_reason]
        return done

    def abort(self, seq: Sequence) -> None:
        """End a sequence that waits or runs, and give back its blocks. Raises ValueError for any other.

        Also after Ctrl-C in the middle of a call, when it may stand in both queues or in none.
        """
        if seq not in self:
            raise ValueError(f"sequence {seq.seq_id} neither waits nor runs here: it has ended, or was never added")
        at = bisect_left(self._waiting, self._place(seq))
        if at < len(self._waiting) and self._waiting[at][-1] is seq:
            del self._waiting[at]
        if seq in self.running:
            self.running.remove(seq)
        if seq.seq_id in self.blocks:
            self.blocks.free(seq.seq_id)
        self._end(seq)
        seq.finish_reason = "abort"

    def preempt(self, seq: Sequence) -> None:
        """Let a running sequence give back its blocks and wait for its turn again. It keeps its tokens. What a step in
        flight computes is committed before the next one is scheduled, or dropped."""
        self.running.remove(seq)
        self.blocks.free(seq.seq_id)
        seq.num_cached_tokens = 0
        self.num_preemptions += 1
        insort(self._waiting, self._place(seq))

    def _growing(self, ahead: Ahead) -> list[Sequence]:
        """Sequences whose next token begins a block, the oldest first."""
        size, blocks = self.blocks.block_size, self.blocks
        growing = [
            seq for seq in self.running
            if not (cached := seq.num_cached_tokens + ahead.get(seq.seq_id, 0)) % size
            and cached == size * len(blocks.of(seq.seq_id)) and not self._will_end(seq, ahead)
        ]  # fmt: skip
        return sorted(growing, key=self._age)

    def _grow(self, growing: list[Sequence], ahead: Ahead) -> bool:
        """A block for each of them. True if somebody was preempted for it."""
        blocks, before = self.blocks, self.num_preemptions
        for seq in growing:
            while seq.seq_id in blocks and not blocks.num_free:
                self.preempt(max(self.running, key=self._age))
            if seq.seq_id in blocks:
                blocks.reserve({seq.seq_id: seq.num_cached_tokens + ahead.get(seq.seq_id, 0) + 1})
        return self.num_preemptions > before

    @staticmethod
    def _will_end(seq: Sequence, ahead: Ahead) -> bool:
        """Whether the token that a step in flight gives it is the last one that it may have."""
        n = ahead.get(seq.seq_id, 0)
        return n > 0 and seq.num_cached_tokens + n == len(seq) == seq.max_len - 1

    def _prompts(self, may_admit: bool, set_aside: list[Place], ahead: Ahead) -> Iterator[tuple[Sequence, int]]:
        """Those with more than one token to compute, and then, as they are asked for, those that join; how many of
        each are cached."""
        for seq in list(self.running):
            if (cached := seq.num_cached_tokens + ahead.get(seq.seq_id, 0)) < len(seq) - 1:
                yield seq, cached
        while may_admit and (seq := self._admit(set_aside)):
            yield seq, seq.num_cached_tokens

    def _admit(self, set_aside: list[Place]) -> Sequence | None:
        """The next one joins, if there is a place for it and blocks for all its tokens. Set aside, each with a place
        that stays free for it, are those that can share what a running one computes now: in the next step, maybe."""
        while self._waiting and len(self.running) + len(set_aside) < self.max_num_seqs:
            at = self.policy.pick(self._waiting, self.blocks.num_free * self.blocks.block_size)
            seq = self._waiting[at][-1]
            if self.blocks.must_wait(seq):
                set_aside.append(self._waiting.pop(at))
                continue
            num_cached = self.blocks.admit(seq)
            if num_cached is None:
                return None
            del self._waiting[at]
            seq.num_cached_tokens = num_cached
            self.running.append(seq)
            return seq
        return None

    def _place(self, seq: Sequence) -> Place:
        arrival = self._arrivals[seq.seq_id]
        return seq.priority, arrival // ROUND, self.policy.key(seq), arrival, seq

    def _age(self, seq: Sequence) -> tuple[int, int]:
        """The least important, and of those the youngest, is the largest."""
        return seq.priority, self._arrivals[seq.seq_id]

    def _end(self, seq: Sequence) -> None:
        seq.num_cached_tokens = 0
        del self._arrivals[seq.seq_id]


def not_finite(seq: Sequence) -> str:
    return f"logits must be finite to sample from them, sequence {seq.seq_id} has NaN or infinity"
