"""What a request that changes logits has to give: transformers' processors over logits without any cache, one token at
a time. What transformers does not have is written out in torch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)

from roseinfer.models import Model
from roseinfer.reference import reference_logits
from roseinfer.sampling import sample
from roseinfer.sampling_params import UNCHANGED, SamplingParams
from roseinfer.sequence import Sequence, finish_reason


class Counted(LogitsProcessor):
    """presence_penalty and frequency_penalty as OpenAI's API defines them, over the whole vocabulary."""

    def __init__(self, num_prompt: int, params: SamplingParams) -> None:
        self.num_prompt, self.params = num_prompt, params

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.bincount(input_ids[0, self.num_prompt :], minlength=scores.size(-1))
        return scores - self.params.frequency_penalty * counts - self.params.presence_penalty * (counts > 0)


class Called(LogitsProcessor):
    """A function of the request's own."""

    def __init__(self, num_prompt: int, function) -> None:
        self.num_prompt, self.function = num_prompt, function

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.function(input_ids[0, self.num_prompt :].tolist(), scores[0].clone())[None]


def processors_of(
    params: SamplingParams, num_prompt: int, vocab_size: int, ends: tuple[int, ...], bad_words: list[list[int]]
) -> LogitsProcessorList:
    """In the order that SamplingParams names."""
    made = LogitsProcessorList()
    if params.allowed_token_ids is not None:
        others = [token for token in range(vocab_size) if token not in params.allowed_token_ids]
        made.append(SuppressTokensLogitsProcessor(others))
    if params.min_tokens and ends:
        made.append(MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, [*ends]))
    if params.logit_bias:
        made.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias.items()}))
    made += [Called(num_prompt, function) for function in params.logits_processors]
    if bad_words:
        made.append(NoBadWordsLogitsProcessor(bad_words))
    if params.repetition_penalty != 1:
        made.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.frequency_penalty or params.presence_penalty:
        made.append(Counted(num_prompt, params))
    if params.min_p and params.temperature:
        made += [
            TemperatureLogitsWarper(params.temperature),
            MinPLogitsWarper(params.min_p),
            TemperatureLogitsWarper(1 / params.temperature),
        ]
    return made


def continued(
    model: Model, prompt: list[int], params: SamplingParams, bad_words: list[list[int]] = ()
) -> tuple[list[int], str]:
    """The tokens of a request, and why it ends."""
    eos = model.config.eos_token_ids
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    made = processors_of(params, len(prompt), model.config.vocab_size, tuple(ends), bad_words)
    seq = Sequence(prompt, replace(params, **UNCHANGED))  # what is left for roseinfer.sampling.sample
    while not (reason := finish_reason(seq, eos) if seq.output_ids else None):
        logits = reference_logits(model, seq.token_ids)[-1:].clone()
        seq.append(sample(made(torch.tensor([seq.token_ids]), logits), [seq])[0])
    return seq.output_ids, reason
