"""Stage 14, token budget: requests arrive at any time, and a step takes tokens from all of them.

What was slow:  a prompt has a forward of its own, and no sequence decodes until it is done: one long prompt stalls
                every running request. A request joins only if the pool has blocks for its maximum length, so most of
                the pool is reserved for tokens that never come.
The change:     a step is no longer "a prompt" or "a decode step" but at most max_num_batched_tokens tokens: one of each
                decoding sequence, and the rest from prompts. A prompt that does not fit is split into chunks, one for
                each step. A sequence joins with blocks for the tokens that it has. When the pool runs out, the newest
                sequence is preempted: it frees its blocks and is recomputed later. Greedy tokens stay the same.
What it gives:  no step has more tokens than the budget. The batch stays full.
Where it loses: a prompt in chunks reads the weights, and its own cache, once a chunk: its first token comes later. A
                step that contains a prompt has no graph. And a preempted sequence is computed twice.

Iteration-level scheduling: Orca (Yu et al., 2022). Preemption by recomputation: vLLM (Kwon et al., 2023).
Chunks beside decodes: Sarathi-Serve (Agrawal et al., 2024). Post: "Tuning decoding models" tunes the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from roseinfer.arguments import require_count
from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import check_startable, commit
from roseinfer.models import Attend, Model
from roseinfer.profiling import span
from roseinfer.sequence import Sequence

from .s13_graphs import Graphs


class TokenBudget(Graphs):
    """Graphs with a queue. add() queues a sequence; call step(), which gives tokens to some, until has_work is False.

    max_num_batched_tokens: of a step, from max_num_seqs to max_num_tokens; None for max_num_tokens, with which a
    prompt alone is never split. waiting: in order of arrival. running: the oldest first; prompts may be partly done.
    Raises ValueError for a budget that is out of range.
    """

    name = "s14_token_budget"

    def __init__(
        self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.max_num_batched_tokens = self.max_num_tokens
        if max_num_batched_tokens is not None:
            require_count("max_num_batched_tokens", max_num_batched_tokens, at_least=1)
            if not max_num_seqs <= max_num_batched_tokens <= self.max_num_tokens:
                raise ValueError(
                    f"max_num_batched_tokens must be from max_num_seqs={max_num_seqs}, a token of each sequence, to "
                    f"{self.max_num_tokens}, got {max_num_batched_tokens}"
                )
            self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence. Raises ValueError for one that could never finish, or that was added before."""
        if seq in self.waiting or seq in self.running:
            raise ValueError(f"sequence {seq.seq_id} waits or runs here already")
        check_startable(self, [seq])
        self.waiting.append(seq)

    def abort(self, seq: Sequence) -> None:
        """End a sequence that is waiting or running. Raises ValueError for any other."""
        queue = self.waiting if seq in self.waiting else self.running
        if seq not in queue:
            raise ValueError(f"sequence {seq.seq_id} neither waits nor runs here: it has ended, or was never added")
        queue.remove(seq)
        if self.holds(seq):
            self.free(seq)
        seq.finish_reason = "abort"

    def step(self) -> list[Sequence]:
        """Run one step; return the sequences that got a token. After an error in the model, call it again.

        Raises ValueError without work, and OutOfBlocks when blocks held elsewhere leave no room for any sequence.
        """
        if not self.has_work:
            raise ValueError("step needs a sequence that waits or runs: add one first")
        seqs, num_new = self.schedule()
        return self.commit(seqs, self.run(seqs, num_new))

    def schedule(self) -> tuple[list[Sequence], list[int]]:
        """The sequences of the next step and how many tokens of each; their blocks are reserved. At most the last one
        is split. Never empty while a sequence is waiting or running."""
        was_full = self.make_room()
        seqs = [seq for seq in self.running if seq.num_cached_tokens == len(seq) - 1]
        num_new = [1] * len(seqs)
        room = self.max_num_batched_tokens - len(seqs)
        for seq in self.prompts(may_admit=not was_full):
            seqs.append(seq)
            num_new.append(min(room, len(seq) - seq.num_cached_tokens))
            room -= num_new[-1]
            if not room:
                break
        if not seqs:
            raise OutOfBlocks("no sequence can run: others than those added here hold the blocks or places it needs")
        return seqs, num_new

    def make_room(self) -> bool:
        """Reserve blocks for the next token of each running sequence. True when a sequence was preempted for it."""
        before = self.num_preemptions
        for seq in list(self.running):  # the oldest first; the newest is preempted
            while self.holds(seq):
                try:
                    self.tables.reserve({seq.seq_id: len(seq)})
                    break
                except OutOfBlocks:
                    self.preempt(self.running[-1])
        return self.num_preemptions > before

    def preempt(self, seq: Sequence) -> None:
        """Free its blocks, keep its tokens, and put it first in the queue. Raises ValueError unless it is running."""
        if seq not in self.running:
            raise ValueError(f"sequence {seq.seq_id} does not run here: only what runs can be preempted")
        self.running.remove(seq)
        self.free(seq)
        self.waiting.appendleft(seq)
        self.num_preemptions += 1

    def prompts(self, may_admit: bool) -> Iterator[Sequence]:
        """Yield running sequences with more than one token to compute, and then those that join, one at a time."""
        yield from [seq for seq in self.running if seq.num_cached_tokens < len(seq) - 1]
        while may_admit and self.waiting and self.admit(self.waiting[0]):
            yield self.running[-1]

    def admit(self, seq: Sequence) -> bool:
        """Let a waiting sequence run, if max_num_seqs and the free blocks allow it."""
        if len(self.tables) == self.max_num_seqs or self.tables.blocks_for(len(seq)) > self.tables.num_free:
            return False
        self.tables.reserve({seq.seq_id: len(seq)})
        self.waiting.remove(seq)
        self.running.append(seq)
        return True

    @torch.inference_mode()
    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        """One forward for the next num_new[i] tokens of each sequence. Returns the token that follows each; the last
        one gets none if its prompt is split."""
        chosen = self.chosen(seqs, num_new)
        if sum(num_new) == len(chosen):
            return self.next_tokens(seqs)
        with span("roseinfer.mixed_step"):
            token_ids, positions = self.write_inputs(seqs, num_new)
            attend = self.write_tables(seqs, num_new)
            tokens = self.read(self.forward(chosen, token_ids, positions, attend), chosen)
        for seq, n in zip(seqs, num_new, strict=True):
            seq.num_cached_tokens += n
        return tokens

    def chosen(self, seqs: list[Sequence], num_new: list[int]) -> list[Sequence]:
        """The sequences that get a token: all, except a last one whose prompt is split."""
        is_cut = seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1])
        return seqs[:-1] if is_cut else seqs

    def forward(self, chosen: list[Sequence], token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The model over a step's tokens; token ids on the device, one for each of `chosen`."""
        with span("roseinfer.model.forward"):
            hidden = self.model(token_ids, positions, attend)
            last_rows = self.inputs_on_device["query_start"][1 : len(chosen) + 1] - 1
            logits = self.model.logits(hidden[last_rows])
        return self.choose(logits, chosen) if chosen else last_rows

    def read(self, tokens: Tensor, seqs: list[Sequence]) -> list[int]:
        """Token ids [B] on the host: the only wait of a step. Raises ValueError for -1: NaN or infinite logits."""
        read = tokens.tolist()
        if -1 in read:
            seq = seqs[read.index(-1)]
            raise ValueError(f"logits must be finite to sample from them, sequence {seq.seq_id} has NaN or infinity")
        return read

    def commit(self, seqs: list[Sequence], tokens: list[int]) -> list[Sequence]:
        """Append a step's tokens and free the sequences that end. Returns the sequences with a new token."""
        done = seqs[: len(tokens)]
        commit(self, done, tokens)
        self.running = [seq for seq in self.running if not seq.finish_reason]
        return done
