"""ready_batch: a stage that holds a batch, ready for a decode step."""

from __future__ import annotations

from collections import abc

from roseinfer.generate import begin, decode_step
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage


def ready_batch(
    stage_class: type[Stage],
    model: Model,
    prompt_lens: abc.Sequence[int],
    steps: int = 0,
    max_tokens: int = 64,
    **sizes: int,
) -> tuple[Stage, list[Sequence]]:
    """Make a fresh stage and one sequence for each prompt length: prefilled, and decoded `steps` times.

    sizes: num_blocks or block_size of the stage; by default four blocks of 64 slots for each sequence.
    """
    stage = stage_class(model, **{"num_blocks": 4 * len(prompt_lens), "max_num_seqs": len(prompt_lens), **sizes})
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    seqs = begin(stage, [[3 + i] * n for i, n in enumerate(prompt_lens)], params)
    for _ in range(steps):
        decode_step(stage, seqs)
    return stage, seqs
