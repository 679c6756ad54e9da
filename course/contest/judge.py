"""The judge: checks that tokens are the greedy ones, without a list of right answers that an entry could read.

One forward over a prompt and the tokens that were handed in says of each token whether the model would have chosen it
after those before. If it says so of all, they are the greedy continuation: by induction, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from roseinfer.models import Model
from roseinfer.reference import reference_logits

from .workload import Request

# Two logits may be closer than the rounding of two right orders of summation. Then either token is right.
CLOSE = 1e-4


def mistake_in(model: Model, requests: Sequence[Request], answers: Sequence[list[int]]) -> str | None:
    """Describe what is wrong about the first request with a wrong token; None if all tokens are right."""
    for number, (request, tokens) in enumerate(zip(requests, answers, strict=True)):
        place = first_wrong(model, request.prompt, tokens)
        if place is not None:
            return f"request {number}: token {place} is wrong{_whose(model, requests, number, tokens)}"
    return None


def first_wrong(model: Model, prompt: list[int], tokens: list[int]) -> int | None:
    """Find the index of the first token that greedy decoding would not choose; None if all are right."""
    if wrong := [i for i, token in enumerate(tokens) if not 0 <= token < model.config.vocab_size]:
        tokens = tokens[: wrong[0]]
    if tokens:
        logits = reference_logits(model, prompt + tokens[:-1])[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)).squeeze(1)
        off = (logits.amax(1) - chosen > CLOSE).nonzero().flatten().tolist()
        if off:
            return int(off[0])
    return wrong[0] if wrong else None


def _whose(model: Model, requests: Sequence[Request], number: int, tokens: list[int]) -> str:
    """Say so if the tokens are the right ones of another request."""
    for other, request in enumerate(requests):
        num_tokens = min(len(tokens), request.max_tokens)
        if other != number and first_wrong(model, request.prompt, tokens[:num_tokens]) is None:
            return f", and these are the tokens of request {other}"
    return ""
