"""OutputStream: the way of an answer from the engine's thread to the reader of one HTTP request.

The engine's thread finds what is new of each request after a step (Unsent), and hands it over. A reader takes all that
has come since it last looked, as one Delta a sample. So a slow reader gets few and large ones, and holds up no step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NoReturn

from roseinfer.llm.request import Request

from .request_id import REQUEST_ID


@dataclass(slots=True)
class Delta:
    """What is new of one sample. index: of the sample among all of its stream. is_own_error: as in Sequence.

    logprobs: for each new token, as in Sequence; None unless they were asked for. finish_reason, stop_reason, error: as
    in CompletionOutput, None while the sample runs.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[Any] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    is_own_error: bool = False

    def add(self, later: Delta) -> None:
        """Append what came next of the same sample."""
        self.text += later.text
        self.token_ids += later.token_ids
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs += later.logprobs
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        self.error, self.is_own_error = later.error, later.is_own_error


def join(samples: dict[int, Delta], deltas: Sequence[Delta]) -> None:
    """Append to each sample, by index, what came next of it."""
    for delta in deltas:
        if before := samples.get(delta.index):
            before.add(delta)
        else:
            samples[delta.index] = delta


class Unsent:
    """Finds what is new of a request since it was last asked. first_index: of its first sample in the stream."""

    def __init__(self, request: Request, first_index: int) -> None:
        self._request, self._first_index = request, first_index
        self._num_characters = [0] * len(request.samples)
        self._num_tokens = [sample.seq.num_prompt_tokens for sample in request.samples]
        self._has_ended = [False] * len(request.samples)

    def take(self) -> list[Delta]:
        """Return a Delta for each sample with news."""
        deltas = []
        for i, sample in enumerate(self._request.samples):
            if self._has_ended[i] or (sample.num_read == self._num_tokens[i] and not sample.finish_reason):
                continue
            seq, begin, end = sample.seq, self._num_tokens[i], sample.num_read
            text = sample.detokenizer.text if sample.detokenizer else ""
            logprobs = None
            if seq.logprobs is not None:
                logprobs = seq.logprobs[begin - seq.num_prompt_tokens : end - seq.num_prompt_tokens]
            new = text[self._num_characters[i] :]
            deltas.append(
                Delta(
                    self._first_index + i,
                    new,
                    seq.token_ids[begin:end],
                    logprobs,
                    sample.finish_reason,
                    sample.stop_reason,
                    seq.error,
                    seq.is_own_error,
                )
            )
            self._num_characters[i], self._num_tokens[i] = len(text), end
            self._has_ended[i] = sample.finish_reason is not None
        return deltas


class OutputStream:
    """The outputs of one HTTP request, from the moment when it is accepted, for one reader on the event loop's thread.

    num_samples: of its requests, which are made later. only_whole: its reader wants each request when that has
    finished, and nothing before.
    """

    def __init__(self, num_samples: int, only_whole: bool) -> None:
        self.num_samples, self.only_whole = num_samples, only_whole
        self.arrival = perf_counter()  # the engine's clock
        self.request_id = REQUEST_ID.get()  # of the HTTP request
        self.requests: Sequence[Request] = ()
        self.num_tokens = 0  # new ones so far
        self._num_running = self.num_samples
        self._pending: dict[int, Delta] = {}
        self._failure: Exception | None = None
        self._has_news = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come; what has come may still be unread."""
        return not self._num_running or self._failure is not None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.samples[0].seq.num_prompt_tokens for request in self.requests)

    def push(self, deltas: list[Delta]) -> None:
        """Make these deltas the next that the reader gets."""
        for delta in deltas:
            self.num_tokens += len(delta.token_ids)
            self._num_running -= delta.finish_reason is not None
        join(self._pending, deltas)
        self._has_news.set()

    def fail(self, failure: Exception) -> None:
        """Raise an error to the reader, once, after all that has come."""
        if not self.has_ended:
            self._failure = failure
            self._has_news.set()

    async def failure(self) -> NoReturn:
        """Wait for the error that `fail` is given, and raise it at once: for a request that is not begun yet."""
        while not self._failure:
            self._has_news.clear()
            await self._has_news.wait()
        raise self._failure

    async def next(self) -> list[Delta]:
        """Return what is new, at most one Delta a sample; [] at the end. Raises what `fail` was given."""
        while not self._pending:
            if self._failure:
                raise self._failure
            if not self._num_running:
                return []
            self._has_news.clear()
            await self._has_news.wait()
        deltas = list(self._pending.values())
        self._pending = {}
        return deltas

    async def rest(self) -> list[Delta]:
        """Wait for the end, and return one Delta a sample, in the order of their indices."""
        whole: dict[int, Delta] = {}
        while deltas := await self.next():
            join(whole, deltas)
        return [whole[index] for index in sorted(whole)]
