"""Engines that draft in every step, and proposers whose drafts a test knows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from small_engines import engine_of

from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.sequence import Sequence

NGRAM = {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1}


def draft_model(model: Model, num_tokens: int = 3) -> dict:
    return {"method": "draft_model", "model": model, "num_tokens": num_tokens}


def similar(model: Model) -> Model:
    """A model whose greedy tokens are often the same."""
    near = deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter += 0.1 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return near


def drafting_engine(model: Model, speculative: dict = NGRAM, **settings) -> Engine:
    """An engine that drafts in every step, whatever the clock says."""
    engine = engine_of(model, speculative=speculative, **settings)
    engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True
    return engine


class Scripted:
    """draft_of(seq): its draft, of any length."""

    def __init__(self, draft_of: Callable[[Sequence], list[int]]) -> None:
        self.draft_of = draft_of

    def wishes(self, seqs):
        return [len(self.draft_of(seq)) for seq in seqs]

    def propose(self, seqs, most):
        return [self.draft_of(seq)[:n] for seq, n in zip(seqs, most, strict=True)]


def scripted_engine(model: Model, draft_of: Callable[[Sequence], list[int]], num_tokens: int = 4, **settings) -> Engine:
    engine = drafting_engine(model, {"method": "ngram", "num_tokens": num_tokens}, **settings)
    engine.speculation.proposer = Scripted(draft_of)
    return engine
