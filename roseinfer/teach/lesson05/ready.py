"""ready: a stage that holds a batch of given lengths, ready to decode."""

from __future__ import annotations

from collections.abc import Sequence as List

from roseinfer.generate import begin
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage


def ready(
    stage_class: type[Stage], model: Model, prompt_lens: List[int], max_tokens: int = 64, block_size: int = 64
) -> tuple[Stage, list[Sequence]]:
    """Make a stage, and prefill one sequence per length. Its pool has blocks for max_tokens more of each.

    Prompt i repeats token 3 + i. The stage has a slot for each sequence; no sequence stops at an end token.
    """
    num_blocks = sum(-(-(length + max_tokens) // block_size) for length in prompt_lens)
    stage = stage_class(model, num_blocks=num_blocks, block_size=block_size)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return stage, begin(stage, [[3 + i] * length for i, length in enumerate(prompt_lens)], params)
