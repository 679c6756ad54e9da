"""draw_token_distribution: how often sampled requests get which second token, beside its exact probability.

The second token is the first one that a draft can have guessed. What is drawn with drafts has to have the model's
distribution; Pearson's chi-square test (1900) says how well the counts agree with it.
"""

from __future__ import annotations

from collections import Counter, abc
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from course.display.board import EDGE, MONOSPACE
from roseinfer.arguments import counted, require_count
from roseinfer.display.chart import PAGE_WIDTH, SEAM, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model
from roseinfer.reference import reference_logits
from roseinfer.sampling import probabilities
from roseinfer.sequence import SamplingParams, Sequence

from ..lesson15.stage_requests import run_out
from .draft_picture import readable

if TYPE_CHECKING:
    import altair as alt

EXACT = "exact"
AT_ONCE, BLOCK_SIZE = 32, 16  # AT_ONCE sequences, and a row for a draft of each
NEW_TOKENS = 3  # of a request: its second token may be drafted, and the model's own one follows
FEWEST_EXPECTED = 5  # of a token, by the rule of thumb: rarer ones are counted together
FEWEST_DRAWS = 50
HEIGHT = 200


@dataclass(frozen=True)
class Fit:
    """How well counts agree with probabilities, by Pearson's chi-square test.

    p_value: the probability of a chi-square at least as large, if the counts are drawn with these probabilities.
    """

    chi_square: float
    degrees: int
    p_value: float

    def __str__(self) -> str:
        free = f"{counted(self.degrees, 'degree')} of freedom"
        return f"chi-square {self.chi_square:.1f}, {free}, p-value {self.p_value:.2g}"


@dataclass(frozen=True)
class Draws:
    """Second tokens of sampled requests. counts: how often each token came. num_drafted: how many were drafted."""

    counts: Counter[int]
    num_drafted: int
    num_accepted: int

    def share(self, token: int) -> float:
        return self.counts[token] / self.counts.total()

    def __str__(self) -> str:
        return (
            f"{self.num_accepted} of {counted(self.num_drafted, 'draft')} accepted" if self.num_drafted else "no drafts"
        )


def draw_token_distribution(
    stages: abc.Sequence[type[Any]],
    model: Model,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    draws: int = 512,
    top_k: int = 4,
    shown: int = 6,
) -> Chart:
    """Sample `draws` requests with each of `stages`, and draw how often each second token came, beside its probability.

    Each stage gets seeds of its own, because the same seed gives the same tokens with and without drafts.

    stages: with a queue, as stages are from 14 on. top_k: the model's likeliest tokens that are sampled from. shown:
    groups of bars, for the likeliest tokens. Raises ValueError for fewer than 50 draws, a top_k below 2 and a shown
    below 1.
    """
    for name, value, least in (("draws", draws, FEWEST_DRAWS), ("top_k", top_k, 2), ("shown", shown, 1)):
        require_count(name, value, at_least=least)
    prompt_ids = tokenizer.encode(prompt).ids
    params = SamplingParams(NEW_TOKENS, temperature=1, top_k=top_k, ignore_eos=True)
    exact = second_token_probs(model, prompt_ids, params)
    drawn = {
        stage_class.name: draw_second_tokens(stage_class, model, prompt_ids, top_k, range(i * draws, (i + 1) * draws))
        for i, stage_class in enumerate(stages)
    }
    likeliest = exact.argsort(descending=True)[:shown].tolist()
    title = f"second tokens of {counted(draws, 'sampled request')}, of the likeliest {top_k} each time"
    shares = [f"{readable(tokenizer, token)}: exact {exact[token]:.3f}{_shares(token, drawn)}" for token in likeliest]
    fits = [f"{name}: {own}; {fit_of(own.counts, exact)}" for name, own in drawn.items()]
    bars = _bars(exact, drawn, likeliest, tokenizer).properties(title={"text": title, "subtitle": fits})
    return Chart(bars, "\n".join([title, *shares, *fits]))


def second_token_probs(model: Model, prompt_ids: list[int], params: SamplingParams) -> Tensor:
    """Compute the probability [V] of each second token, over all first tokens that may come."""
    total = torch.zeros(model.config.vocab_size, dtype=torch.float64)
    first = _probs_after(model, prompt_ids, params)
    for token in first.nonzero().flatten().tolist():
        total += first[token] * _probs_after(model, [*prompt_ids, token], params)
    return total


def _probs_after(model: Model, token_ids: list[int], params: SamplingParams) -> Tensor:
    return probabilities(reference_logits(model, token_ids)[-1:], [params])[0].double().cpu()


def draw_second_tokens(
    stage_class: type[Any], model: Model, prompt_ids: list[int], top_k: int, seeds: abc.Sequence[int]
) -> Draws:
    """Run a request for each seed, AT_ONCE of them in a batch."""
    blocks = -(-(len(prompt_ids) + NEW_TOKENS) // BLOCK_SIZE)
    stage = stage_class(model, num_blocks=AT_ONCE * blocks, block_size=BLOCK_SIZE, max_num_seqs=2 * AT_ONCE)
    counts: Counter[int] = Counter()
    for start in range(0, len(seeds), AT_ONCE):
        seqs = [
            Sequence(prompt_ids, SamplingParams(NEW_TOKENS, temperature=1, top_k=top_k, ignore_eos=True, seed=seed))
            for seed in seeds[start : start + AT_ONCE]
        ]
        run_out(stage, *seqs)
        counts.update(seq.output_ids[1] for seq in seqs)
    return Draws(counts, getattr(stage, "num_drafted", 0), getattr(stage, "num_accepted", 0))


def fit_of(counts: Counter[int], exact: Tensor) -> Fit:
    """Compute Pearson's statistic over tokens, rare ones counted together; infinite for a token of probability 0."""
    pairs = [(float(p) * counts.total(), counts[token]) for token, p in enumerate(exact) if p > 0]
    groups = _with_enough(pairs)
    is_impossible = sum(got for _, got in pairs) < counts.total()
    chi_square = inf if is_impossible else sum((got - want) ** 2 / want for want, got in groups)
    degrees = len(groups) - 1
    half = torch.tensor([max(degrees, 1), chi_square], dtype=torch.float64) / 2  # a single group fits exactly: 1
    p_value = torch.special.gammaincc(half[0], half[1])
    return Fit(chi_square, degrees, float(p_value))


def _with_enough(pairs: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Add up (expected, counted) of tokens, from the rarest on, until each group has FEWEST_EXPECTED expected."""
    groups, want, got = [], 0.0, 0
    for more_want, more_got in sorted(pairs):
        want, got = want + more_want, got + more_got
        if want >= FEWEST_EXPECTED:
            groups.append((want, got))
            want, got = 0.0, 0
    return groups


def _shares(token: int, drawn: dict[str, Draws]) -> str:
    return "".join(f", {name} {own.share(token):.3f}" for name, own in drawn.items())


def _bars(exact: Tensor, drawn: dict[str, Draws], likeliest: list[int], tokenizer: Tokenizer) -> alt.Chart:
    """Draw a group of bars for each token: the exact probability, and the share of each stage's draws."""
    import altair as alt
    import pandas as pd

    shares = {EXACT: exact} | {name: {t: own.share(t) for t in likeliest} for name, own in drawn.items()}
    rows = [
        (f"{rank}. {readable(tokenizer, token)}", kind, round(float(share[token]), 4))
        for rank, token in enumerate(likeliest, 1)
        for kind, share in shares.items()
    ]
    frame = pd.DataFrame(rows, columns=["token", "kind", "share"])
    kinds = list(shares)
    colours = alt.Scale(domain=kinds, range=[EDGE, *PALETTE[: len(kinds) - 1]])
    return (
        alt.Chart(csv_data(frame))
        .mark_bar(stroke=SEAM)
        .encode(
            x=alt.X("token:N", title="second token", sort=None, axis=alt.Axis(labelAngle=0, labelFont=MONOSPACE)),
            xOffset=alt.XOffset("kind:N", sort=kinds),
            y=alt.Y("share:Q", title="share of the requests", axis=alt.Axis(format="%", tickCount=6)),
            color=alt.Color("kind:N", title=None, scale=colours, legend=alt.Legend(orient="top")),
            tooltip=["token:N", "kind:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=PAGE_WIDTH - 80, height=HEIGHT)
    )
