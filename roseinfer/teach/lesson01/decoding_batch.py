"""decoding_batch: a stage that holds sequences of given lengths, ready for its next step."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import TypeVar

from roseinfer.generate import begin
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

AnyStage = TypeVar("AnyStage", bound=Stage)
ROOM = 4  # blocks per sequence
MAX_TOKENS = 64


def decoding_batch(stage_class: type[AnyStage], model: Model, lengths: List[int]) -> tuple[AnyStage, list[Sequence]]:
    """Prefill one prompt of each length; return the stage and its sequences, for decode_step.

    Raises ValueError without a length, and for one below 1.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths must be at least one, each 1 or more, got {list(lengths)}")
    stage = stage_class(model, num_blocks=ROOM * len(lengths))
    prompts = [[3 + i] * n for i, n in enumerate(lengths)]
    return stage, begin(stage, prompts, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True))
