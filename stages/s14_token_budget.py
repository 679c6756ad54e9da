"""Stage 14, token budget: requests come when they like, and a step takes tokens from all of them.

What was slow:  a prompt has a forward of its own, and until it is done nobody decodes: one long prompt, and every
                request that runs stands still. A request joins only if the pool has blocks for the longest that it
                may become, so most of the pool waits for tokens that do not come.
The change:     a step is no longer "a prompt" or "a decode step" but at most max_num_batched_tokens tokens: one of each
                sequence that decodes, and what is left for prompts. A prompt that does not fit is cut, and goes on in
                the next step. A sequence joins with blocks for the tokens that it has. When the pool runs out, the
                youngest gives its blocks back, waits, and is computed again: greedy tokens stay the same.
What it gives:  the longest step has as many tokens as the budget, whatever comes. The batch stays full.
Where it loses: a cut prompt reads the weights, and its own cache, once a chunk: its first token comes later. Steps with
                a prompt in them are not replayed. And what was preempted is paid for twice.

Steps over all requests that there are: Orca (Yu et al., 2022). Preemption by recomputation: vLLM (Kwon et al., 2023).
Chunks beside decodes: Sarathi-Serve (Agrawal et al., 2024). Post: "Tuning decoding models" has the budget as its knob.
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
    """Graphs with a queue. Sequences are added, and step() makes one token more of some, until has_work is False.

    max_num_batched_tokens: of a step, from max_num_seqs to max_num_tokens; None for max_num_tokens, which cuts no
    prompt that comes alone. waiting: in the order of arrival. running: the oldest first; their prompts may be in parts.
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
        """Let a sequence wait for its turn. Raises ValueError for one that could never run to its end, or is here."""
        if seq in self.waiting or seq in self.running:
            raise ValueError(f"sequence {seq.seq_id} waits or runs here already")
        check_startable(self, [seq])
        self.waiting.append(seq)

    def abort(self, seq: Sequence) -> None:
        """End a sequence that waits or runs. Raises ValueError for any other."""
        queue = self.waiting if seq in self.waiting else self.running
        if seq not in queue:
            raise ValueError(f"sequence {seq.seq_id} neither waits nor runs here: it has ended, or was never added")
        queue.remove(seq)
        if self.holds(seq):
            self.free(seq)
        seq.finish_reason = "abort"

    def step(self) -> list[Sequence]:
        """One step; the sequences that have one token more. After an error of the model it can be made again.

        Raises ValueError without work, and OutOfBlocks when blocks that nobody here can give back leave room for none.
        """
        if not self.has_work:
            raise ValueError("step needs a sequence that waits or runs: add one first")
        seqs, num_new = self.schedule()
        return self.commit(seqs, self.run(seqs, num_new))

    def schedule(self) -> tuple[list[Sequence], list[int]]:
        """The sequences of the next step and how many tokens of each, blocks for them reserved. At most the last one
        is cut. Not empty while anything waits or runs."""
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
        """Blocks for the token that each running sequence computes next. True when somebody had to give up theirs."""
        before = self.num_preemptions
        for seq in list(self.running):  # the oldest first; the youngest pays
            while self.holds(seq):
                try:
                    self.tables.reserve({seq.seq_id: len(seq)})
                    break
                except OutOfBlocks:
                    self.preempt(self.running[-1])
        return self.num_preemptions > before

    def preempt(self, seq: Sequence) -> None:
        """It gives back its blocks, keeps its tokens, and is the next to join. Raises ValueError unless it runs."""
        if seq not in self.running:
            raise ValueError(f"sequence {seq.seq_id} does not run here: only what runs can be preempted")
        self.running.remove(seq)
        self.free(seq)
        self.waiting.appendleft(seq)
        self.num_preemptions += 1

    def prompts(self, may_admit: bool) -> Iterator[Sequence]:
        """Running sequences with more than one token to compute, and then, as they are asked for, those that join."""
        yield from [seq for seq in self.running if seq.num_cached_tokens < len(seq) - 1]
        while may_admit and self.waiting and self.admit(self.waiting[0]):
            yield self.running[-1]

    def admit(self, seq: Sequence) -> bool:
        """Let a waiting sequence run, if there is a place for it and blocks for all tokens that it has."""
        if len(self.tables) == self.max_num_seqs or self.tables.blocks_for(len(seq)) > self.tables.num_free:
            return False
        self.tables.reserve({seq.seq_id: len(seq)})
        self.waiting.remove(seq)
        self.running.append(seq)
        return True

    @torch.inference_mode()
    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        """One forward for the next num_new[i] tokens of each sequence. The token that follows each; a last one whose
        prompt is cut gets none."""
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
        """The sequences that get a token: all but a last one whose prompt is cut."""
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
        """[B] on the host, the one time that a step waits. Raises ValueError for -1, where logits are not finite."""
        read = tokens.tolist()
        if -1 in read:
            seq = seqs[read.index(-1)]
            raise ValueError(f"logits must be finite to sample from them, sequence {seq.seq_id} has NaN or infinity")
        return read

    def commit(self, seqs: list[Sequence], tokens: list[int]) -> list[Sequence]:
        """Append a step's tokens; whoever ends gives its blocks back. The sequences that have a new token."""
        done = seqs[: len(tokens)]
        commit(self, done, tokens)
        self.running = [seq for seq in self.running if not seq.finish_reason]
        return done
