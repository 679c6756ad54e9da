"""Greedy tokens of every stage against the reference, in fp32 on this device, whatever shares the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from roseinfer.generate import generate
from roseinfer.models import Model, load_model
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..contenders import ContenderFailed, blame
from ..ladder import mixed_prompts
from ..token_check import Referee, TokensDiffer
from .context import Context, one_line

BLOCK_SIZE = 16
# Untrained weights are so small that the last token alone decides the next one. Scaled up, attention and positions do.
WEIGHT_SCALE = 12


def tokens(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each (model, stage): verdict "equal", or what is wrong."""
    for spec in context.plan.checked_models:
        model = load_model(spec, device=context.device, dtype=torch.float32)
        if spec.startswith("random:"):
            _scale_up(model)
        prompts = mixed_prompts(model, context.plan.checked_prompt_lens)
        referee = Referee(model, prompts)
        for stage in context.course.stages:
            try:
                outputs = generated(stage, model, prompts, context.plan.checked_new_tokens)
                referee.check(stage.name, outputs)
                verdict = "equal"
            except (ContenderFailed, TokensDiffer) as error:
                verdict = one_line(str(error))
                context.fail(f"tokens, {spec}: {verdict}")
            yield {"model": spec, "stage": stage.name, "verdict": verdict}


def generated(stage_class: type[Stage], model: Model, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """New tokens of each prompt. Every sequence ends at its own step, and half of them wait for a place to start."""
    params = [SamplingParams(max_tokens=max_new_tokens + i, ignore_eos=True) for i in range(len(prompts))]
    longest = max(map(len, prompts)) + max_new_tokens + len(prompts)
    places = -(-len(prompts) // 2)
    with blame(stage_class.name, "generate"):
        stage = stage_class(
            model, num_blocks=places * -(-longest // BLOCK_SIZE), block_size=BLOCK_SIZE, max_num_seqs=places
        )
        return [seq.output_ids for seq in generate(stage, prompts, params)]


@torch.no_grad()
def _scale_up(model: Model) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(WEIGHT_SCALE)
