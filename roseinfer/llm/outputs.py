"""Outputs of a request, named as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.engine.metrics import RequestMetrics
from roseinfer.sequence import Logprob


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """The text that follows a prompt, so far or to its end.

    Args:
        index: number of the sample, from 0 to n - 1.
        text: the new text, without the stop string or end token unless include_stop_str_in_output.
        token_ids: the new tokens, with those of a stop string, stop token or end token.
        cumulative_logprob: sum of the chosen tokens' log-probabilities. None unless logprobs were asked for.
        logprobs: for each token, {token id: Logprob} of the chosen token, then of the likeliest ones. None unless they
            were asked for.
        finish_reason: None while it runs, then "stop" (a stop string, a stop token or the model's end token),
            "length", "abort" or "error".
        stop_reason: the stop string, or the stop token's id. None for any other end.
        error: what went wrong with this sample alone, such as logits that are not finite. Text and tokens are those
            before the error.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request with its outputs.

    Args:
        request_id: names the request for LLM.abort.
        prompt: the prompt's text. None: it was given as token ids.
        prompt_token_ids: the prompt's tokens.
        outputs: one for each of the params.n samples.
        finished: whether all samples have ended.
        metrics: timestamps of the request.
        prompt_logprobs: {token id: Logprob} for each token of the prompt, and None for its first token. None unless
            they were asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
