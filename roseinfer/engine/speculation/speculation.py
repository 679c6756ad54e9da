"""Speculation: adds drafts to the steps of an engine, where they pay."""

from __future__ import annotations

from collections import abc
from itertools import takewhile
from operator import eq
from typing import Protocol

from roseinfer.models import Model
from roseinfer.sequence import Sequence

from ..config import EngineConfig
from ..feature import Feature
from ..metrics import EngineMetrics
from ..scheduler import Scheduler
from ..step import Step
from .draft_model import DraftModelProposer
from .ngram import NGramProposer
from .payoff import Payoff
from .settings import NGRAM, SpeculativeConfig


class Proposer(Protocol):
    """Drafts tokens that may follow the text of a sequence. It may be wrong: every draft is verified."""

    def warm_up(self) -> None:
        """Prepare what the first drafts would otherwise have to make. Call it before the first request."""

    def wishes(self, seqs: abc.Sequence[Sequence]) -> list[int]:
        """Return how many tokens it can draft for each sequence."""

    def propose(self, seqs: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[list[int]]:
        """Return a draft of up to most[i] tokens for each of seqs, where most[i] is at most what `wishes` returned."""


class Speculation(Feature):
    """Adds drafts to steps. proposer: makes them. payoff: decides, from measured steps, whether a step gets drafts."""

    def __init__(self, proposer: Proposer, scheduler: Scheduler, metrics: EngineMetrics) -> None:
        self.proposer, self.scheduler, self.metrics = proposer, scheduler, metrics
        self.payoff = Payoff()

    def warm_up(self) -> None:
        self.proposer.warm_up()

    def before_launch(self, step: Step) -> None:
        """Add drafts to the sequences of a step that decode, as many as there are tokens and blocks for."""
        # 1. Ask which drafts can be made, and whether they pay.
        seqs = list(takewhile(_decodes, step.seqs))
        wishes = self.proposer.wishes(seqs)
        if not any(wishes) or not self.payoff.is_worth(len(seqs), sum(wishes)):
            return
        # 2. Make them, in blocks that are reserved for them.
        most = reserve_drafts(self.scheduler, step, wishes)
        if not any(most):
            return
        drafts = self.proposer.propose(seqs, most)
        for seq, draft in zip(seqs, drafts, strict=True):
            self.scheduler.blocks.trim(seq.seq_id, len(seq) + len(draft))
        # 3. Let the step verify them.
        if any(drafts):
            add_drafts(step, drafts)

    def after_tokens(self, step: Step, done: list[Sequence]) -> None:
        """Count the drafts that held, and give back the blocks that only the others needed.

        How long steps with prompts take depends on the prompts: whether drafts pay is learnt from the others.
        """
        num_seqs, num_drafted = len(step.seqs), sum(map(len, step.drafts))
        num_accepted = settle_drafts(self.scheduler, step) if step.drafts else 0
        self.metrics.num_drafted += num_drafted
        self.metrics.num_accepted += num_accepted
        if sum(step.num_new) == num_seqs + num_drafted:
            self.payoff.observe(num_seqs, num_drafted, num_accepted, step.ended - step.scheduled)

    def after_drop(self) -> None:
        """Give back the blocks of drafts that no step is going to verify."""
        for seq in self.scheduler.running:
            self.scheduler.blocks.trim(seq.seq_id, len(seq))


def reserve_drafts(scheduler: Scheduler, step: Step, wishes: abc.Sequence[int]) -> list[int]:
    """Return how many draft tokens each of a step's first sequences may have, up to its wish, and reserve blocks.

    The limits are what is left of the step's tokens, of the sequence's, and of the free blocks. Nothing is preempted
    for a draft.
    """
    blocks, size = scheduler.blocks, scheduler.blocks.block_size
    room, most = scheduler.max_num_batched_tokens - sum(step.num_new), []
    for seq, wish in zip(step.seqs[: len(wishes)], wishes, strict=True):
        slots = (len(blocks.of(seq.seq_id)) + blocks.num_free) * size - len(seq)
        # Its last draft is never its last token: one more follows, whether or not the draft holds.
        most.append(min(wish, room, seq.max_len - len(seq) - 1, slots))
        room -= most[-1]
        if most[-1]:
            blocks.reserve({seq.seq_id: len(seq) + most[-1]})
    return most


def add_drafts(step: Step, drafts: list[list[int]]) -> None:
    """Let a step verify drafts of its first sequences."""
    step.drafts = [*drafts, *([] for _ in step.seqs[len(drafts) :])]
    step.num_new = [n + len(draft) for n, draft in zip(step.num_new, step.drafts, strict=True)]


def settle_drafts(scheduler: Scheduler, step: Step) -> int:
    """Give back the blocks that only rejected drafts needed, and return how many tokens of drafts were accepted."""
    num_accepted = 0
    for seq, draft, num_given in zip(step.seqs, step.drafts, step.num_given, strict=True):
        if draft:
            given = seq.token_ids[len(seq) - num_given :]
            num_accepted += sum(map(eq, given, draft))  # as far as both go: one token more is no draft's
            if seq.seq_id in scheduler.blocks:
                scheduler.blocks.trim(seq.seq_id, seq.num_cached_tokens)
    return num_accepted


def _decodes(seq: Sequence) -> bool:
    return len(seq) == seq.num_cached_tokens + 1


def speculation_of(
    config: EngineConfig, target: Model, scheduler: Scheduler, metrics: EngineMetrics
) -> Speculation | None:
    """Return the speculation that an engine's settings ask for, None for none.

    Raises ValueError for a draft model that does not suit the target.
    """
    wanted = config.speculative
    if wanted is None:
        return None
    longest = config.longest(target.config)
    wanted.check_sizes(config.step_tokens, longest)
    if wanted.method == NGRAM:
        return Speculation(NGramProposer(wanted.num_tokens, *wanted.lookup_sizes), scheduler, metrics)
    draft = _suitable(wanted, target, longest)
    proposer = DraftModelProposer(draft, scheduler.blocks, wanted.num_tokens, config.step_tokens, config.enforce_eager)
    return Speculation(proposer, scheduler, metrics)


def _suitable(wanted: SpeculativeConfig, target: Model, longest: int) -> Model:
    draft = wanted.model
    if not isinstance(draft, Model):
        raise ValueError(
            f"speculative['model']={draft!r:.100} must be a Model for an Engine: roseinfer.LLM loads specs"
        )
    wanted.check_model(draft.config, target.config, longest)
    if draft.device != target.device:
        raise ValueError(f"speculative['model'] is on {draft.device}, allowed: {target.device}, where its target is")
    return draft
