"""Greedy tokens of every stage and of LLM on this device, in each dtype, whatever shares the batch.

In fp32 they must equal the reference's. In half precision correct programs part, since they round sums in other orders:
there each token must be one that rounding explains. Its logit, computed in fp32 from the same weights behind the same
text, may be as far below the best one as twice the largest error that the reference itself makes in that dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import Any

import torch

from roseinfer.engine.llm import LLM
from roseinfer.generate import generate
from roseinfer.models import Model, load_model
from roseinfer.reference import reference_logits
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..contenders import ContenderFailed, blame
from ..ladder import mixed_prompts
from ..token_check import Referee, TokensDiffer
from .context import Context, one_line

BLOCK_SIZE = 16
# Untrained weights are so small that the last token alone decides the next one. Scaled up, attention and positions do.
WEIGHT_SCALE = 12

Tokens = list[list[int]]


def tokens(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each (model, dtype, who): verdict "equal" in fp32, "near" in half precision, or what is wrong."""
    plan, until = context.plan, perf_counter() + context.plan.token_check_seconds
    pairs = [(spec, dtype) for dtype in plan.dtypes for spec in plan.checked_models]  # fp32 first
    for done, (spec, dtype) in enumerate(pairs):
        if perf_counter() > until:
            context.note(f"tokens: {len(pairs) - done} of {len(pairs)} models and dtypes not run, out of time")
            return
        model = checked_model(spec, context.device, getattr(torch, dtype))
        prompts = mixed_prompts(model, plan.checked_prompt_lens)
        judge = Exactly(model, prompts) if model.dtype == torch.float32 else Nearly(model, prompts)
        for name, run in contenders(context, model, prompts):
            try:
                with blame(name, "generate"):
                    outputs = run()
                found = judge(name, outputs)
            except (ContenderFailed, TokensDiffer) as error:
                found = {"verdict": one_line(str(error))}
            if found["verdict"] not in ("equal", "near"):
                context.fail(f"tokens, {spec}, {dtype}: {found['verdict']}")
            yield {"model": spec, "dtype": dtype, "stage": name, **found}


def contenders(context: Context, model: Model, prompts: Tokens) -> Iterator[tuple[str, Callable[[], Tokens]]]:
    """Every stage, and LLM with graphs and without, which computes prompts and new tokens in one batch."""
    max_tokens = context.plan.checked_new_tokens
    for stage in context.course.stages:
        yield stage.name, partial(generated, stage, model, prompts, max_tokens)
    for name, enforce_eager in (("LLM, eager", True), ("LLM", False)):
        yield name, partial(generated_by_llm, model, prompts, max_tokens, enforce_eager)


class Exactly:
    """The reference's tokens, all of them."""

    def __init__(self, model: Model, prompts: Tokens) -> None:
        self._referee = Referee(model, prompts)

    def __call__(self, name: str, outputs: Tokens) -> dict[str, Any]:
        """Raises TokensDiffer."""
        self._referee.check(name, outputs)
        return {"verdict": "equal"}


class Nearly:
    """Tokens that rounding explains."""

    def __init__(self, model: Model, prompts: Tokens) -> None:
        self._model, self._exact, self._prompts = model, deepcopy(model).float(), prompts

    def __call__(self, name: str, outputs: Tokens) -> dict[str, Any]:
        """gap: by how much a token's logit is below the best one, at most; allowed: what it may be."""
        gap = error = 0.0
        for prompt, output in zip(self._prompts, outputs, strict=True):
            text, new = prompt + output[:-1], slice(len(prompt) - 1, None)
            logits = reference_logits(self._exact, text)[new]
            error = max(error, float((reference_logits(self._model, text)[new].float() - logits).abs().max()))
            chosen = logits.gather(1, torch.tensor(output, device=logits.device).unsqueeze(1)).squeeze(1)
            gap = max(gap, float((logits.amax(dim=1) - chosen).max()))
        verdict = "near" if gap <= 2 * error else f"{name}: a token's logit is {gap:.2g} below the best one"
        return {"verdict": verdict, "gap": gap, "allowed": 2 * error}


def generated(stage_class: type[Stage], model: Model, prompts: Tokens, max_new_tokens: int) -> Tokens:
    """New tokens of each prompt. Every sequence ends at its own step, and half of them wait for a place to start."""
    places, num_blocks = sizes(prompts, max_new_tokens)
    stage = stage_class(model, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_num_seqs=places)
    return [seq.output_ids for seq in generate(stage, prompts, params(prompts, max_new_tokens))]


def generated_by_llm(model: Model, prompts: Tokens, max_new_tokens: int, enforce_eager: bool) -> Tokens:
    """As `generated`."""
    places, num_blocks = sizes(prompts, max_new_tokens)
    llm = LLM(
        model, num_kvcache_blocks=num_blocks, block_size=BLOCK_SIZE, max_num_seqs=places, enforce_eager=enforce_eager
    )
    outputs = llm.generate(prompts, params(prompts, max_new_tokens), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def params(prompts: Tokens, max_new_tokens: int) -> list[SamplingParams]:
    return [SamplingParams(max_tokens=max_new_tokens + i, ignore_eos=True) for i in range(len(prompts))]


def sizes(prompts: Tokens, max_new_tokens: int) -> tuple[int, int]:
    """Places for half of the sequences, and blocks for so many of the longest."""
    longest = max(map(len, prompts)) + max_new_tokens + len(prompts)
    places = -(-len(prompts) // 2)
    return places, places * -(-longest // BLOCK_SIZE)


@torch.no_grad()
def checked_model(spec: str, device: torch.device, dtype: torch.dtype) -> Model:
    model = load_model(spec, device=device, dtype=dtype)
    if spec.startswith("random:"):
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(WEIGHT_SCALE)
    return model
