"""The answers of the API: bodies and chunks, from the deltas of an OutputStream. One class for each kind of request."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from .errors import ApiError
from .logprob_format import TokenTexts
from .output_stream import Delta, OutputStream
from .tool_calls import CallReader

Json = dict[str, Any]
ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make one for each event
DONE = b"data: [DONE]\n\n"


def event(data: Json) -> bytes:
    """Write a server-sent event."""
    return f"data: {ENCODER.encode(data)}\n\n".encode()


class Answer:
    """An answer as it is sent. stream: the outputs that it is made of. texts: of tokens, for their log-probabilities.

    whole(deltas) is the body; first(), chunk(delta), last() are the events of a stream.
    """

    KIND = CHUNK_KIND = ""
    PREFIX = ""

    def __init__(self, model: str, stream: OutputStream, texts: TokenTexts, include_usage: bool = False) -> None:
        self.stream, self.texts, self.include_usage = stream, texts, include_usage
        self._head = {"id": f"{self.PREFIX}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, deltas: list[Delta]) -> Json:
        """Return the whole body. Raises ApiError where a sample ended with an error."""
        for delta in deltas:
            self._check(delta)
        choices = [self.choice(delta) for delta in deltas]
        return self._head | {"object": self.KIND, "choices": choices, "usage": self.usage()}

    def first(self) -> bytes:
        return b""

    def chunk(self, delta: Delta) -> bytes:
        """Return the event for a delta. Raises ApiError as `whole` does."""
        self._check(delta)
        return self._event([self.part(delta)])

    def last(self) -> bytes:
        if not self.include_usage:
            return DONE
        return event(self._head | {"object": self.CHUNK_KIND, "choices": [], "usage": self.usage()}) + DONE

    def choice(self, delta: Delta) -> Json:
        """Return the choice for a whole sample."""
        raise NotImplementedError

    def part(self, delta: Delta) -> Json:
        """Return the part of a chunk with what is new of a sample."""
        raise NotImplementedError

    def usage(self) -> Json:
        given, made = self.stream.num_prompt_tokens, self.stream.num_tokens
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}

    def _event(self, choices: list[Json]) -> bytes:
        usage = {"usage": None} if self.include_usage else {}
        return event(self._head | {"object": self.CHUNK_KIND, "choices": choices} | usage)

    def _check(self, delta: Delta) -> None:
        if delta.error and delta.is_own_error:
            raise ApiError(delta.error, code="no_token_left")
        if delta.finish_reason in ("error", "abort"):
            raise ApiError(delta.error or "the request was aborted", status=500, code="step_failed")


class CompletionAnswer(Answer):
    """The answer of /v1/completions. echo: texts of the prompts, which stand before those of their samples.

    is_empty: no new token was asked for, so the one that the engine made is left out.
    """

    KIND = CHUNK_KIND = "text_completion"
    PREFIX = "cmpl"

    def __init__(self, *arguments: Any, echo: Sequence[str] = (), is_empty: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        samples = [sample for request in self.stream.requests for sample in request.samples]
        asked = samples[0].seq.params.logprobs is not None  # all samples of one body ask for the same
        self._offsets = [self.texts.offsets(sample, bool(echo)) for sample in samples] if asked else []
        self._echo, self._is_empty = echo, is_empty
        self._has_begun = [False] * self.stream.num_samples

    def choice(self, delta: Delta) -> Json:
        delta = self._echoed(delta)
        has_logprobs = delta.logprobs is not None
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": self.texts.of_completion(delta, self._offsets[delta.index]) if has_logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    part = choice

    def usage(self) -> Json:
        usage = super().usage()
        return usage | {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]} if self._is_empty else usage

    def _echoed(self, delta: Delta) -> Delta:
        """Return what a client gets of a delta: the prompt stands before the first one of a sample."""
        if self._is_empty:
            delta = Delta(delta.index, "", [], None if delta.logprobs is None else [], "length")
        if self._has_begun[delta.index] or not self._echo:
            return delta
        self._has_begun[delta.index] = True
        place = delta.index * len(self._echo) // self.stream.num_samples  # each prompt has as many samples
        request = self.stream.requests[place]
        logprobs = None if request.prompt_logprobs is None else [*request.prompt_logprobs]
        whole = Delta(delta.index, self._echo[place], request.prompt_ids, logprobs)
        whole.add(delta)
        return whole


class ChatAnswer(Answer):
    """The answer of /v1/chat/completions."""

    KIND, CHUNK_KIND = "chat.completion", "chat.completion.chunk"
    PREFIX = "chatcmpl"
    FIRST_CONTENT: str | None = ""

    @property
    def _num_top(self) -> int:
        return self.stream.requests[0].samples[0].seq.params.logprobs or 0

    def choice(self, delta: Delta) -> Json:
        return self._ended(delta) | {"message": {"role": "assistant", "content": delta.text, "refusal": None}}

    def first(self) -> bytes:
        begin = {"delta": {"role": "assistant", "content": self.FIRST_CONTENT}, "logprobs": None, "finish_reason": None}
        return b"".join(self._event([{"index": index} | begin]) for index in range(self.stream.num_samples))

    def part(self, delta: Delta) -> Json:
        return self._ended(delta) | {"delta": {"content": delta.text} if delta.text else {}}

    def _ended(self, delta: Delta) -> Json:
        return {
            "index": delta.index,
            "logprobs": None if delta.logprobs is None else self.texts.of_chat(delta, self._num_top),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }


class CallAnswer(ChatAnswer):
    """The answer of /v1/chat/completions to a request that requires a call of a tool.

    finish_reason: of a call that is whole. OpenAI has "stop" where the request named the function, and "tool_calls"
    where any could be called.
    """

    FIRST_CONTENT = None

    def __init__(self, *arguments: Any, finish_reason: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._finish_reason = finish_reason
        self._readers = [CallReader() for _ in range(self.stream.num_samples)]

    def choice(self, delta: Delta) -> Json:
        calls = [{name: call[name] for name in call if name != "index"} for call in self._new_calls(delta)]
        message = {"role": "assistant", "content": None, "refusal": None}
        return self._ended(delta) | {"message": message | ({"tool_calls": calls} if calls else {})}

    def part(self, delta: Delta) -> Json:
        calls = self._new_calls(delta)
        return self._ended(delta) | {"delta": {"tool_calls": calls} if calls else {}}

    def _new_calls(self, delta: Delta) -> list[Json]:
        return self._readers[delta.index].read(delta.text)

    def _ended(self, delta: Delta) -> Json:
        is_whole = delta.finish_reason == "stop" and self._readers[delta.index].is_whole
        return super()._ended(delta) | ({"finish_reason": self._finish_reason} if is_whole else {})


class GenerateAnswer(Answer):
    """The answer of /generate. before: the prompt, where it was asked to stand before the text."""

    def __init__(self, *arguments: Any, before: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._before, self._so_far = before, ""

    def whole(self, deltas: list[Delta]) -> Json:
        [delta] = deltas
        self._check(delta)
        return {"generated_text": self._before + delta.text, "details": self._details(delta)}

    def chunk(self, delta: Delta) -> bytes:
        """Return the event for a delta; the last event has the whole text."""
        self._check(delta)
        self._so_far += delta.text
        ended = delta.finish_reason is not None
        whole = {"generated_text": self._before + self._so_far if ended else None}
        return event({"text": delta.text} | whole | {"details": self._details(delta) if ended else None})

    def last(self) -> bytes:
        return b""

    def _details(self, delta: Delta) -> Json:
        return {
            "finish_reason": delta.finish_reason,
            "prompt_tokens": self.stream.num_prompt_tokens,
            "generated_tokens": self.stream.num_tokens,
        }
