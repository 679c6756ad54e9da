"""Scheduler: which sequences a step computes, how many tokens of each, and what becomes of them. Plain Python."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, count

from roseinfer.sampling import NO_TOKEN
from roseinfer.sequence import Sequence, finish_reason

from .block_manager import BlockManager
from .config import EngineConfig
from .policies import ROUND, FirstCome, Place, Policy, policy_for
from .prefix_cache import PrefixCache
from .step import Step, not_finite


class Scheduler:
    """Continuous batching (Orca: Yu et al., 2022) under a token budget, with chunked prompts.

    A step has one token of each sequence that decodes, and then, up to max_num_batched_tokens, prompts: of those that
    run, and of those that wait, in the policy's order. So at most the last one is cut, and goes on in the next step
    (Sarathi-Serve: Agrawal et al., 2024).

    A sequence joins when the pool has blocks for all tokens that it has now, and a few to spare for those that run
    (SEQS_PER_SPARE_BLOCK). When a running one finds the pool empty, the youngest is preempted: it gives back its
    blocks, waits, and is computed again (vLLM: Kwon et al., 2023).

    max_num_batched_tokens: at least max_num_seqs, so that prompts that are not done get some of it in every step.
    """

    def __init__(
        self,
        blocks: BlockManager,
        max_num_batched_tokens: int,
        eos_token_ids: tuple[int, ...],
        policy: Policy | None = None,
    ) -> None:
        self.blocks = blocks
        self.max_num_seqs = len(blocks.table.ids)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.eos_token_ids = eos_token_ids
        self.policy = policy or FirstCome()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._waiting: list[Place] = []  # sorted
        self._arrivals: dict[int, int] = {}  # of all that wait or run, by seq_id
        self._next_arrival = count()

    @classmethod
    def of(cls, config: EngineConfig, longest: int, eos_token_ids: tuple[int, ...] = ()) -> Scheduler:
        """Make a scheduler over an empty pool. longest: tokens of the longest sequence."""
        cache = PrefixCache(config.block_size) if config.enable_prefix_caching else None
        max_blocks = min(config.num_blocks, -(-longest // config.block_size))
        blocks = BlockManager(config.num_blocks, config.block_size, config.max_num_seqs, max_blocks, cache)
        return cls(blocks, config.step_tokens, eos_token_ids, policy_for(config.scheduling_policy))

    @property
    def waiting(self) -> list[Sequence]:
        """Queued sequences, in the policy's order."""
        return [place[-1] for place in self._waiting]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self.running)

    def __contains__(self, seq: Sequence) -> bool:
        """Whether the sequence waits or runs here."""
        return seq.seq_id in self._arrivals

    def add(self, seq: Sequence) -> None:
        self._arrivals[seq.seq_id] = next(self._next_arrival)
        insort(self._waiting, self._place(seq))

    def schedule(self) -> Step | None:
        """Return the next step and reserve blocks for it; None without work.

        Scheduling again without a launch gives the same step again, and maybe new arrivals.

        Tokens in flight count as cached, and each sequence as having the token that they produce. Then None can also
        mean that a sequence has to be preempted, which waits until no step in flight computes one, so that no token is
        lost.
        """
        # 1. Reserve a block for each sequence whose next token begins one. Where none is left, the youngest give way.
        growing = self._growing()
        if growing and len(growing) > self.blocks.num_free and any(seq.num_in_flight for seq in self.running):
            return None
        may_admit = not (growing and self._grow(growing))
        # 2. Take one token of each sequence that decodes, and find the prompts that are not done.
        seqs: list[Sequence] = []
        prompts: list[Sequence] = []
        for seq in self.running:
            left = len(seq.token_ids) - seq.num_cached_tokens - seq.num_in_flight  # num_launched_tokens, spelled out
            # 0: its next token is in flight, and it decodes on from there unless that token is its last one.
            if left == 1 or (left == 0 and len(seq.token_ids) < seq.max_len - 1):
                seqs.append(seq)
            elif left:
                prompts.append(seq)
        step = Step(seqs, [1] * len(seqs))
        # 3. Fill up the budget with prompts: of those that run, then of those that wait.
        if prompts or self._waiting:
            self._add_prompts(step, prompts, may_admit)
        return step if step.seqs else None

    def commit(self, step: Step, tokens: list[int]) -> list[Sequence]:
        """Append a step's tokens and return the sequences that have a new token or ended.

        tokens: one for each of step.rows; those after a draft that does not hold are dropped.

        What the step computed of the text counts as cached from now on. A sequence that its token finishes gives back
        its blocks, and so does one that gets NO_TOKEN: it ends with an error.

        A sequence that ended or was preempted since the step was scheduled gets nothing: its token is dropped.
        """
        blocks, size = self.blocks, self.blocks.block_size
        held = blocks.table.held
        done, ended = [], []
        for seq, n, given in zip(step.seqs, step.num_new, step.given(tokens), strict=True):
            if seq.seq_id not in held:
                step.num_given.append(0)
                continue
            # 1. Append the tokens, as far as none ends the sequence.
            num_before = len(seq.token_ids)
            for token in given:
                if token == NO_TOKEN:
                    self._fail(seq, step)
                    break
                seq.append(token)
                if reason := finish_reason(seq, self.eos_token_ids):
                    seq.finish_reason = reason
                    break
            step.num_given.append(len(seq.token_ids) - num_before)
            if seq.logprobs is not None:  # those of all rows were reported
                del seq.logprobs[len(seq.token_ids) - seq.num_prompt_tokens :]
            # 2. What it computed of the text is cached: of a cut prompt n tokens more, else all but the newest token.
            is_cut = not given
            seq.num_cached_tokens = seq.num_cached_tokens + n if is_cut else len(seq.token_ids) - (not seq.error)
            if seq.error is None and (n > 1 or not seq.num_cached_tokens % size):
                blocks.keep_computed(seq, is_proven=not is_cut)
            # 3. Note who has something new, and who is finished.
            if given:
                done.append(seq)
            if seq.finish_reason:
                ended.append(seq)
        for seq in ended:
            blocks.free(seq.seq_id)
            self._end(seq)
        if ended:
            self.running = [seq for seq in self.running if not seq.finish_reason]
        return done

    def _fail(self, seq: Sequence, step: Step) -> None:
        """End a sequence that got NO_TOKEN, and make the blocks that may hold the cause impossible to find."""
        self.blocks.forget_unproven(seq.seq_id)
        own = step.own_error(seq)
        seq.finish_reason, seq.error, seq.is_own_error = "error", own or not_finite(seq), own is not None

    def abort(self, seq: Sequence) -> None:
        """End a sequence that waits or runs, and give back its blocks. Raises ValueError for any other."""
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
        """Let a running sequence give back its blocks and wait for its turn again. It keeps its tokens.

        What a step in flight computes is committed before the next one is scheduled, or dropped.
        """
        self.running.remove(seq)
        self.blocks.free(seq.seq_id)
        seq.num_cached_tokens = 0
        self.num_preemptions += 1
        insort(self._waiting, self._place(seq))

    def _growing(self) -> list[Sequence]:
        """Return the sequences whose next token begins a block, the oldest first."""
        size, blocks = self.blocks.block_size, self.blocks
        growing = [
            seq
            for seq in self.running
            if not (launched := seq.num_cached_tokens + seq.num_in_flight) % size
            and launched == size * len(blocks.of(seq.seq_id))
            and launched < seq.max_len - 1
        ]
        return sorted(growing, key=self._age)

    def _grow(self, growing: list[Sequence]) -> bool:
        """Reserve a block for each of these sequences. Return True if that took a preemption."""
        blocks, before = self.blocks, self.num_preemptions
        for seq in growing:
            while seq.seq_id in blocks and not blocks.num_free:
                self.preempt(max(self.running, key=self._age))
            if seq.seq_id in blocks:
                blocks.reserve({seq.seq_id: seq.num_launched_tokens + 1})
        return self.num_preemptions > before

    def _add_prompts(self, step: Step, prompts: list[Sequence], may_admit: bool) -> None:
        """Add prompts to a step that has the sequences that decode, as far as its budget of tokens goes."""
        room = self.max_num_batched_tokens - len(step.seqs)
        set_aside: list[Place] = []
        try:
            for seq in chain(prompts, self._joining(may_admit, set_aside)):
                left = len(seq.token_ids) - seq.num_launched_tokens
                step.seqs.append(seq)
                step.num_new.append(min(room, left))
                room -= step.num_new[-1]
                if not room:
                    step.is_cut = step.num_new[-1] < left
                    break
        finally:
            for place in set_aside:
                insort(self._waiting, place)

    def _joining(self, may_admit: bool, set_aside: list[Place]) -> Iterator[Sequence]:
        """Yield sequences that join, each when it is asked for."""
        while may_admit and (seq := self._admit(set_aside)):
            yield seq

    def _admit(self, set_aside: list[Place]) -> Sequence | None:
        """Let the next sequence join, if there is a place and blocks for all its tokens, and return it, else None.

        Those that can share what a running one computes now are set aside: they join in a later step, and a place stays
        free for each of them.
        """
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
        """Return a sort key by which the least important sequence, and of those the youngest, is the largest."""
        return seq.priority, self._arrivals[seq.seq_id]

    def _end(self, seq: Sequence) -> None:
        seq.num_cached_tokens = 0
        del self._arrivals[seq.seq_id]
