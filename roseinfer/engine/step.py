"""Step: what the engine computes at once, from the scheduler's choice to the tokens that are appended."""

from __future__ import annotations

from collections import abc
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.sequence import Sequence

from .logit_changes import ChangedRow
from .logprobs import StepLogprobs
from .speculation.verify import verified


class StepRecord(NamedTuple):
    """One step of an engine, and the timestamps that its tokens have in common, in seconds by the engine's clock.

    scheduled: when the scheduler began to put the step together. inference_begin: when it was handed over to be run.
    inference_end: when its tokens were on the host. finish: when its sequences had them.

    num_tokens: how many it computed, without surplus ones, of sequences that had ended by then. num_new_tokens: how
    many its sequences got. num_running, num_waiting: how many sequences ran and waited as it was put together. What is
    not known of another engine's step is NaN, or 0.
    """

    scheduled: float = nan
    inference_begin: float = nan
    inference_end: float = nan
    finish: float = nan
    num_tokens: int = 0
    num_new_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0


@dataclass(slots=True, eq=False)
class Step:
    """A step over num_new[i] tokens of seqs[i], which the scheduler makes, the runner computes, the scheduler commits.

    seqs: first those that decode, then prompts. is_cut: the last one is a prompt that goes on in the next step. drafts:
    with speculative decoding, for each sequence the tokens that may follow its text, [] for none: num_new counts them,
    and the step chooses a token after each of them, too.

    Set by the launch: copies: blocks that are copied first, {block: source}. takes_likeliest: whether each sequence
    takes the model's likeliest token as it is. changed: rows whose requests change logits. future: what the device is
    making of the step. Set by the commit: num_given: how many tokens each sequence got.

    scheduled, launched, ended: timestamps, when the scheduler began, when the step was handed over, and when its tokens
    were on the host. load: how many sequences ran and waited, as the step was put together.
    """

    seqs: list[Sequence]
    num_new: list[int]
    is_cut: bool = False
    drafts: abc.Sequence[list[int]] = ()
    copies: dict[int, int] = field(default_factory=dict)
    takes_likeliest: bool = field(init=False)
    changed: list[ChangedRow] = field(default_factory=list)
    future: Future[StepTokens] = field(init=False)
    num_given: list[int] = field(default_factory=list)
    scheduled: float = field(init=False)
    launched: float = field(init=False)
    ended: float = field(init=False)
    load: tuple[int, int] = field(init=False)

    @property
    def chosen(self) -> list[Sequence]:
        """The sequences that get a token: all but a cut prompt."""
        return self.seqs[:-1] if self.is_cut else self.seqs

    @property
    def rows(self) -> list[Sequence]:
        """The sequence of each token that the step chooses: with drafts, a sequence has several rows."""
        if not self.drafts:
            return self.chosen
        chosen = zip(self.chosen, self.drafts[: len(self.chosen)], strict=True)
        return [seq for seq, draft in chosen for _ in range(1 + len(draft))]

    def given(self, tokens: list[int]) -> list[list[int]]:
        """Return the tokens that each sequence gets, of those that its rows [R] chose: none for a cut prompt."""
        assert len(tokens) == len(self.rows), (
            f"{len(tokens)} tokens for {len(self.chosen)} sequences with {sum(map(len, self.drafts))} drafts"
        )
        if self.drafts:
            rest = iter(tokens)
            drafts = self.drafts[: len(self.chosen)]
            given = [verified(draft, list(islice(rest, 1 + len(draft)))) for draft in drafts]
        else:
            given = [[token] for token in tokens]
        return [*given, []] if self.is_cut else given

    def draft_of(self) -> dict[int, list[int]]:
        """Return the drafts by seq_id, {} for a step without drafts."""
        seq_ids = [seq.seq_id for seq in self.seqs]
        return dict(zip(seq_ids, self.drafts, strict=True)) if self.drafts else {}

    def own_error(self, seq: Sequence) -> str | None:
        """Return why one of its sequences gets no token, if the sequence's own params are the cause.

        Call it once the step is computed. None where the model's logits are the cause.
        """
        # A row after a draft that does not hold may have failed, too: its text is longer than the sequence.
        whys = [each.why_no_token() for each in self.changed if each.seq is seq and each.length == len(seq)]
        return whys[0] if whys else None


def not_finite(seq: Sequence) -> str:
    return f"logits must be finite to sample from them, sequence {seq.seq_id} has NaN or infinity"


class HostMemory(NamedTuple):
    """Memory on the host for the tokens of any step. is_copied: the event that they are there, None for at once."""

    tokens: Tensor
    is_copied: torch.cuda.Event | None

    @classmethod
    def of(cls, num_rows: int, device: torch.device) -> HostMemory:
        on_gpu = device.type == "cuda"
        tokens = torch.empty(num_rows, dtype=torch.int64, pin_memory=on_gpu)
        return cls(tokens, torch.cuda.Event() if on_gpu else None)


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The tokens of a step, [R], soon in memory on the host.

    logprobs: log-probabilities where a request asked for them.
    """

    num_rows: int
    memory: HostMemory
    logprobs: StepLogprobs | None

    def read(self) -> list[int]:
        """Return the tokens, once they are on the host."""
        if self.memory.is_copied:
            self.memory.is_copied.synchronize()
        return self.memory.tokens[: self.num_rows].tolist()
