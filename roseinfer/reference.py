"""The first oracle: no cache at all. Every token is recomputed from the whole text, one sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from .models import GPT2
from .stage import PromptAttention


@torch.inference_mode()
def reference_logits(model: GPT2, token_ids: list[int]) -> Tensor:
    """Logits [N, V] of every token of one text."""
    ids = torch.tensor(token_ids, device=model.device)
    return model.logits(model(ids, torch.arange(len(token_ids), device=model.device), PromptAttention()))


def reference_generate(model: GPT2, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy continuation of each prompt: max_tokens new ids each, end tokens not heeded."""
    outputs = []
    for prompt in prompts:
        token_ids = list(prompt)
        for _ in range(max_tokens):
            token_ids.append(int(reference_logits(model, token_ids)[-1].argmax()))
        outputs.append(token_ids[len(prompt) :])
    return outputs
