"""Outputs of a request, named as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.engine.metrics import RequestMetrics
from roseinfer.sequence import Logprob


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """The text that follows a prompt, so far or to its end.

    index: of the sample, 0 to n - 1. token_ids: with those of a stop string, stop token or end token, which the text
    leaves out unless include_stop_str_in_output. finish_reason: None while it runs, then "stop" (a stop string, stop
    token or the model's end token), "length", "abort" or "error". stop_reason: the stop string or the stop token's id;
    None for any other end. error: what went wrong with this sample alone, such as logits that are not finite; text and
    tokens are those before it.
    logprobs: for each token, {token id: Logprob} of the chosen token, then of the likeliest ones; cumulative_logprob:
    the sum over the chosen ones. Both None unless they were asked for.
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
    """A request and what came of it. prompt: its text, None where it was given as token ids. outputs: params.n of them.
    finished: all of them are. metrics: its timestamps. prompt_logprobs: for each token of the prompt after the first
    one, for which there is None, {token id: Logprob}; None unless they were asked for."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
