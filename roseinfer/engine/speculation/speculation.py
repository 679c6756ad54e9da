"""Speculation: adds drafts to the steps of an engine, where they pay."""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import takewhile
from typing import Protocol

from roseinfer.models import Model
from roseinfer.sequence import Sequence

from ..config import EngineConfig
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

    def wishes(self, seqs: List[Sequence]) -> list[int]:
        """Return how many tokens it can draft for each sequence."""

    def propose(self, seqs: List[Sequence], most: List[int]) -> list[list[int]]:
        """Return a draft of up to most[i] tokens for each of seqs, where most[i] is at most what `wishes` returned."""


class Speculation:
    """Adds drafts to steps. proposer: makes them. payoff: decides, from measured steps, whether a step gets drafts."""

    def __init__(self, proposer: Proposer, scheduler: Scheduler) -> None:
        self.proposer, self.scheduler = proposer, scheduler
        self.payoff = Payoff()

    def warm_up(self) -> None:
        self.proposer.warm_up()

    def add_drafts(self, step: Step) -> None:
        """Add drafts to the sequences of a step that decode, as many as there are tokens and blocks for."""
        seqs = list(takewhile(_decodes, step.seqs))
        wishes = self.proposer.wishes(seqs)
        if not any(wishes) or not self.payoff.is_worth(len(seqs), sum(wishes)):
            return
        most = self.scheduler.reserve_drafts(step, wishes)
        if not any(most):
            return
        drafts = self.proposer.propose(seqs, most)
        for seq, draft in zip(seqs, drafts, strict=True):
            self.scheduler.blocks.trim(seq.seq_id, len(seq) + len(draft))
        if any(drafts):
            step.drafts = drafts
            step.num_new[: len(drafts)] = [1 + len(draft) for draft in drafts]

    def observe(self, step: Step, seconds: float) -> None:
        """Record that a step was committed `seconds` after it began to be scheduled.

        Steps with prompts are left out: how long they take depends on the prompts.
        """
        num_drafted = sum(map(len, step.drafts))
        if sum(step.num_new) == len(step.seqs) + num_drafted:
            self.payoff.observe(len(step.seqs), num_drafted, sum(step.accepted), seconds)


def _decodes(seq: Sequence) -> bool:
    return len(seq) == seq.num_cached_tokens + 1


def speculation_of(config: EngineConfig, target: Model, scheduler: Scheduler) -> Speculation | None:
    """Return the speculation that an engine's settings ask for, None for none.

    Raises ValueError for a draft model that does not suit the target.
    """
    wanted = config.speculative
    if wanted is None:
        return None
    longest = config.longest(target.config)
    wanted.check_sizes(config.step_tokens, longest)
    if wanted.method == NGRAM:
        return Speculation(NGramProposer(wanted.num_tokens, *wanted.lookup_sizes), scheduler)
    draft = _suitable(wanted, target, longest)
    proposer = DraftModelProposer(draft, scheduler.blocks, wanted.num_tokens, config.step_tokens, config.enforce_eager)
    return Speculation(proposer, scheduler)


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
