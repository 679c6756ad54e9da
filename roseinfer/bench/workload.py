"""Work: requests with their prompts."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.arrivals import Arrival
from roseinfer.models import Model

from .ladder import mixed_prompts

Work = Sequence[tuple[Arrival, list[int]]]  # each with its prompt


def batch_of(prompts: Sequence[list[int]], max_tokens: int) -> Work:
    """Return the work of a batch: all prompts come at once, and each gets max_tokens tokens."""
    return [(Arrival(0.0, len(prompt), max_tokens), prompt) for prompt in prompts]


def with_prompts(arrivals: Sequence[Arrival], model: Model, seed: int = 0) -> Work:
    """Give each arrival a prompt of random ids; prompts with the same prefix begin with the same ones."""
    prompts = mixed_prompts(model, [arrival.prompt_len for arrival in arrivals], seed)
    longest: dict[int, int] = {}
    for text, n in (arrival.prefix for arrival in arrivals if arrival.prefix):
        longest[text] = max(n, longest.get(text, 0))
    texts = dict(zip(longest, mixed_prompts(model, list(longest.values()), seed + 1), strict=True))
    for arrival, prompt in zip(arrivals, prompts, strict=True):
        if arrival.prefix:
            text, n = arrival.prefix
            prompt[:n] = texts[text][:n]
    return list(zip(arrivals, prompts, strict=True))
