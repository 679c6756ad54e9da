"""StepWork: what one step of the engine has to do, in the few numbers that its time depends on."""

from __future__ import annotations

from typing import NamedTuple

from roseinfer.sequence import Sequence


class StepWork(NamedTuple):
    """The work of one step. A decode is a sequence with one token in it, a prompt one with more, whole or a chunk.

    num_seqs: both; logits are computed for one token of each. decode_context, prompt_context: tokens that the last
    token of each sees, itself included; their K and V are read or written. prompt_pairs: of a prompt's token and one
    that it sees, for all its tokens.
    """

    num_seqs: int
    num_decodes: int
    prompt_tokens: int
    decode_context: int
    prompt_context: int
    prompt_pairs: int


def work_of(seqs: list[Sequence], num_new: list[int]) -> StepWork:
    """Count the work of a step that is not committed yet: the next num_new[i] tokens of each sequence."""
    num_seqs, num_tokens = len(seqs), sum(num_new)
    context = num_tokens + sum([seq.num_cached_tokens for seq in seqs])
    if num_tokens == num_seqs:
        return StepWork(num_seqs, num_seqs, 0, context, 0, 0)
    prompts = [(n, seq.num_cached_tokens) for seq, n in zip(seqs, num_new, strict=True) if n > 1]
    num_decodes = num_seqs - len(prompts)
    prompt_context = sum(n + cached for n, cached in prompts)
    pairs = sum(n * cached + n * (n + 1) // 2 for n, cached in prompts)
    return StepWork(num_seqs, num_decodes, num_tokens - num_decodes, context - prompt_context, prompt_context, pairs)
