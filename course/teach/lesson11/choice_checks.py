"""Checks of a learner's choice of tokens: the same as `sample`'s, with few rows sorted, noise drawn, and host reads."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from course.contract.broken_promises import count
from course.contract.promises.choices import chooses_as_sample
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling import host_reads
from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..exercises.wrong import Wrong
from .compare_choices import RowCounter, ready

GREEDY, DRAWN = SamplingParams(), SamplingParams(temperature=1.0, seed=1)
FILTERED = SamplingParams(temperature=0.8, top_k=5, seed=2)
MIXES = {
    "8 greedy rows": [GREEDY] * 8,
    "one drawn row of 8": [GREEDY] * 6 + [DRAWN, GREEDY],
    "3 drawn rows of 8, one with top-k": [GREEDY, FILTERED, GREEDY, DRAWN, GREEDY, DRAWN, GREEDY, GREEDY],
}


def require_choices(stage_class: type[Stage], device: str) -> None:
    """Raise Wrong unless the stage chooses as `sample` does, on the batches of the contract's promise."""
    try:
        chooses_as_sample(stage_class, device)
    except AssertionError as broken:
        raise Wrong(str(broken)) from None


NUCLEUS = SamplingParams(temperature=1.0, top_p=0.5, seed=3)
COLDEST = SamplingParams(temperature=1e-40, seed=4)
# The contract's batch neither begins nor ends with a row that its filter changes.
GIVEN = {
    "the first row alone with top-p": [NUCLEUS, DRAWN, GREEDY, DRAWN],
    "the last row alone with top-p": [DRAWN, GREEDY, DRAWN, NUCLEUS],
    "rows with temperature 1e-40": [COLDEST, GREEDY, COLDEST, DRAWN],
}
TRIES = 8  # sets of logits for each


def require_sampled(stage_class: type[Stage], model: Model) -> None:
    """Raise Wrong unless next_tokens gives the tokens that `sample` gives for the same logits."""
    for what, params in GIVEN.items():
        stage = stage_class(model, num_blocks=2 * len(params))
        seqs = ready(stage, model, params)
        for seed in range(TRIES):
            generator = torch.Generator().manual_seed(seed)
            logits = 3 * torch.randn(len(params), model.config.vocab_size, generator=generator)
            logits[seed % len(params)] += 1000.0  # each row has a largest logit of its own
            logits = logits.to(model.device)  # a seed gives other numbers there
            got, want = _tokens_of(stage, seqs, logits), sample(logits, seqs)
            if got != want:
                given = "raises a ValueError" if got is None else f"gives {got}"
                raise Wrong(f"{what}: next_tokens {given}, and `sample` gives {want} for the same logits")


# In place of one logit of a row: that row gets no token. In place of all but one, -inf is a mask, and allowed.
NOT_FINITE = {"NaN": torch.nan, "infinity": torch.inf}


def require_finite(stage_class: type[Stage], model: Model) -> None:
    """Raise Wrong if a row with NaN or infinity in its logits gets a token all the same, or masked logits are refused.

    Each kind of row is tried, because a step may choose for them in several ways.
    """
    params = [GREEDY, DRAWN, FILTERED]
    stage = stage_class(model, num_blocks=2 * len(params))
    seqs = ready(stage, model, params)
    logits = torch.randn(len(params), model.config.vocab_size, generator=torch.Generator().manual_seed(0))
    for row, what in enumerate(("a greedy row", "a drawn row", "a drawn row with top-k")):
        for name, value in NOT_FINITE.items():
            spoiled = logits.clone()
            spoiled[row, 7] = value
            if (tokens := _tokens_of(stage, seqs, spoiled)) is not None:
                raise Wrong(
                    f"{name} in the logits of {what}, row {row}, and next_tokens gives {tokens}: `choose` gives -1, "
                    "which `read` refuses"
                )
        masked = logits.clone()
        masked[row, :7] = masked[row, 8:] = -torch.inf
        if (tokens := _tokens_of(stage, seqs, masked)) is None or tokens[row] != 7:
            got = "raises a ValueError" if tokens is None else f"gives it token {tokens[row]}"
            raise Wrong(f"all logits but number 7 of {what} are -inf, a mask, and next_tokens {got}; expected token 7")


def _tokens_of(stage: Stage, seqs: list[Sequence], logits: Tensor) -> list[int] | None:
    """Return what next_tokens gives for these logits, None if it refuses them. The sequences are then as before."""
    cached = [seq.num_cached_tokens for seq in seqs]

    def decode(seqs: list[Sequence]) -> Tensor:
        for seq in seqs:
            seq.num_cached_tokens += 1
        return logits.to(stage.model.device)

    try:
        with patch.object(stage, "decode", decode):
            return stage.next_tokens(seqs)
    except ValueError:
        return None
    finally:
        for seq, num_cached in zip(seqs, cached, strict=True):
            seq.num_cached_tokens = num_cached


def require_thrifty(stage_class: type[Stage], model: Model) -> None:
    """Raise Wrong if a step sorts rows without a filter, draws noise for too many rows, or reads more than once.

    A row with a seed may be drawn twice: with the others, and on its own.
    """
    for name, params in MIXES.items():
        stage = stage_class(model, num_blocks=2 * len(params))
        seqs = ready(stage, model, params)
        filtered, drawn = (
            sum(test(p) for p in params) for test in (lambda p: p.top_k > 0, lambda p: p.temperature > 0)
        )
        rows = RowCounter(model.config.vocab_size)
        found = host_reads(partial(rows.during, partial(decode_step, stage, seqs)))
        if found.reads > 1:
            calls = ", ".join(sorted(found.by_call))
            raise Wrong(f"{name}: the host reads {count(found.reads, 'time')} in a step ({calls}), the budget is 1")
        if rows.sorted > filtered:
            raise Wrong(f"{name}: right tokens, but {count(rows.sorted, 'row')} sorted, and {filtered} asked for it")
        if rows.noise > 2 * drawn:
            raise Wrong(f"{name}: right tokens, but noise for {count(rows.noise, 'row')}, and {drawn} drawn")
