"""Outputs of a request, named as in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from roseinfer.engine.metrics import SequenceTimes
from roseinfer.sequence import Logprob


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """A request's timestamps so far, named as in vLLM, in seconds by the engine's clock. None: not yet.

    With several samples these are the first time that one was scheduled, the first token of any and the last token of
    any. finished_time: when all of them have ended. time_in_queue: first_scheduled_time - arrival_time.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    finished_time: float | None
    time_in_queue: float | None

    @classmethod
    def of(cls, samples: Sequence[SequenceTimes]) -> RequestMetrics:
        arrival = min(times.arrival for times in samples)
        ended = [times.ended for times in samples if times.has_ended]
        scheduled = min((t.first_scheduled for t in samples if not isnan(t.first_scheduled)), default=None)
        return cls(
            arrival_time=arrival,
            first_scheduled_time=scheduled,
            first_token_time=min((times.steps[0].finish for times in samples if times.steps), default=None),
            last_token_time=max((times.steps[-1].finish for times in samples if times.steps), default=None),
            finished_time=max(ended) if len(ended) == len(samples) else None,
            time_in_queue=None if scheduled is None else scheduled - arrival,
        )


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
