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


def reference_generate(
    model: Model, prompts: list[list[int]], max_tokens: int, drafts: list[list[int]] | None = None
) -> list[list[int]]:
    """Return the greedy continuation of each prompt: max_tokens new ids each, end tokens ignored.

    drafts: what may follow each prompt, such as the other oracle's tokens. One forward judges a whole draft: up to the
    first token that the model would not choose, all are as if computed one by one.
    """
    return [
        _continued(model, prompt, max_tokens, draft)
        for prompt, draft in zip(prompts, drafts or [[]] * len(prompts), strict=True)
    ]


def _continued(model: Model, prompt: list[int], max_tokens: int, draft: list[int]) -> list[int]:
    token_ids, end = list(prompt), len(prompt) + max_tokens
    while len(token_ids) < end:
        # 1. What the model chooses after the text so far, and after each token of the draft.
        logits = reference_logits(model, [*token_ids, *draft[: max_tokens - 1]])
        chosen = logits[len(token_ids) - 1 :].argmax(dim=1).tolist()
        # 2. Its choices hold up to the first one that the draft does not have. The draft is of no more use then.
        agree = [mine == theirs for mine, theirs in zip(chosen[:-1], draft, strict=False)]
        num_right = [*agree, False].index(False)
        token_ids += chosen[: num_right + 1]
        draft = []
    return token_ids[len(prompt) : end]


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
