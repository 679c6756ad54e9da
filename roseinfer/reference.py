"""The two oracles that every stage is compared with. Neither knows anything of our caches.

The first has no cache at all: every token is recomputed from the whole text. The second is Hugging Face transformers
on the same weights. Both run one sequence at a time, so that no padding and no other sequence is involved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from roseinfer.models import Model, to_hf
from roseinfer.stage import PromptAttention

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.inference_mode()
def reference_logits(model: Model, token_ids: list[int]) -> Tensor:
    """Return the logits [N, V] of every token of one text."""
    ids = torch.tensor(token_ids, device=model.device)
    return model.logits(model(ids, torch.arange(len(token_ids), device=model.device), PromptAttention()))


def reference_generate(model: Model, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return the greedy continuation of each prompt: max_tokens new ids each, end tokens ignored."""
    outputs = []
    for prompt in prompts:
        token_ids = list(prompt)
        for _ in range(max_tokens):
            token_ids.append(int(reference_logits(model, token_ids)[-1].argmax()))
        outputs.append(token_ids[len(prompt) :])
    return outputs


def hf_generate(model: Model, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return transformers' greedy continuation of each prompt: max_tokens new ids each, end tokens ignored.

    Raises ValueError for a model that transformers cannot hold (see models.to_hf).
    """
    hf = to_hf(model)
    return [hf_batch(hf, torch.tensor([prompt], device=model.device), max_tokens)[0] for prompt in prompts]


def hf_batch(hf: PreTrainedModel, input_ids: Tensor, max_tokens: int, **options: Any) -> list[list[int]]:
    """Run hf_generate on one batch: input_ids [B, T], all prompts equally long. options: of transformers' generate."""
    output = hf.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        use_cache=True,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    return output[:, input_ids.size(1) :].tolist()
