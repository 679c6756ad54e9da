"""DraftModelProposer: a smaller model with the same vocabulary drafts greedily."""

from __future__ import annotations

from collections import abc
from copy import copy

from roseinfer.models import Model
from roseinfer.sampling import NO_TOKEN
from roseinfer.sequence import SamplingParams, Sequence

from ..block_manager import BlockManager
from ..runner import Runner
from ..step import Step
from ..warm_up import warm_up

GREEDY = SamplingParams(temperature=0)


class DraftModelProposer:
    """Drafts with a model of its own (Leviathan et al., 2023; Chen et al., 2023), which has its own runner and KV pool.

    The pool has the blocks of the engine's: one table tells both models where a sequence's tokens lie.
    `BlockPool.num_in_draft` says how much of each block the draft model has computed. What it lacks of a text, all
    of a prompt at first, it computes when it drafts next. So blocks that the prefix cache finds are of use to it too,
    and preemption, rejected drafts and steps without drafts need no bookkeeping: only tokens of the text count.

    It drafts greedily, for requests that sample, too. Then a draft needs no distribution to be verified, and the tokens
    of a request with a seed are those that it has without a draft (see `verified`). Drafts that are drawn would be
    accepted more often at high temperatures.

    num_tokens: the length of a draft. max_num_tokens: how many tokens the draft model computes at most in one go.
    """

    def __init__(
        self, model: Model, blocks: BlockManager, num_tokens: int, max_num_tokens: int, enforce_eager: bool = False
    ) -> None:
        self.num_tokens, self.blocks = num_tokens, blocks
        self.runner = Runner(model, blocks, max_num_tokens, enforce_eager)

    def warm_up(self) -> None:
        warm_up(self.runner)

    def wishes(self, seqs: abc.Sequence[Sequence]) -> list[int]:
        """Return how many tokens it can draft for each sequence."""
        return [self.num_tokens] * len(seqs)

    def propose(self, seqs: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[list[int]]:
        """Return a draft of at most most[i] tokens for each of seqs, which hold blocks for those.

        A draft is empty for a sequence whose text the draft model has not computed yet: there was more to compute than
        max_num_tokens.
        """
        copies, self.blocks.pool.copies = self.blocks.pool.copies, {}  # made by the engine's runner, in its own pool
        launched: list[Step] = []
        try:
            wanted = {seq.seq_id: n for seq, n in zip(seqs, most, strict=True) if n}
            step = self._catching_up([seq for seq in seqs if seq.seq_id in wanted])
            while step.seqs:
                self.runner.launch(step)  # it takes the tokens of the step before from the device, unread
                launched.append(step)
                going_on = [seq for seq in step.chosen if wanted[seq.seq_id] > len(launched)]
                step = Step(going_on, [1] * len(going_on))
            drafts: dict[int, list[int]] = {}
            for step in launched:
                for seq, token in zip(step.chosen, self.runner.wait(step), strict=True):
                    drafts.setdefault(seq.seq_id, []).append(token)
        except BaseException:
            for step in reversed(launched):
                self.runner.drop(step)
            raise
        finally:
            self.blocks.pool.copies = copies
        self._count_computed(launched[0])
        return [_finite(drafts.get(seq.seq_id, [])) for seq in seqs]

    def _catching_up(self, seqs: abc.Sequence[Sequence]) -> Step:
        """Return a step over what the draft model lacks of each text, as far as one step goes."""
        step, room = Step([], []), self.runner.max_num_tokens
        for seq in seqs:
            if not room:
                break
            # The draft model's own view of the sequence: its tokens are cached as far as its own pool has them.
            own = copy(seq)
            own.params, own.logprobs, own.num_cached_tokens = GREEDY, None, self._num_computed(seq)
            left = len(own) - own.num_cached_tokens
            step.seqs.append(own)
            step.num_new.append(min(left, room))
            step.is_cut = left > room
            room -= step.num_new[-1]
        return step

    def _num_computed(self, seq: Sequence) -> int:
        """Return how many tokens the draft model has computed, from the first one on, without the text's last one.

        The last one is always computed again.
        """
        size, counts = self.blocks.block_size, self.blocks.pool.num_in_draft
        total = 0
        for block in self.blocks.of(seq.seq_id):
            total += counts[block]
            if counts[block] < size:
                break
        return min(total, len(seq) - 1)

    def _count_computed(self, step: Step) -> None:
        size = self.blocks.block_size
        for seq, n in zip(step.seqs, step.num_new, strict=True):
            end, blocks = seq.num_cached_tokens + n, self.blocks.of(seq.seq_id)
            for i in range(seq.num_cached_tokens // size, -(-end // size)):
                self.blocks.pool.num_in_draft[blocks[i]] = min(size, end - i * size)


def _finite(draft: list[int]) -> list[int]:
    """Return a draft up to where its logits are not finite."""
    return draft[: draft.index(NO_TOKEN)] if NO_TOKEN in draft else draft
