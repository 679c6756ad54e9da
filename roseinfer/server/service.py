"""Service: gives requests of the API to the engine, and writes its answers.

It sees only responses and disconnects of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from roseinfer.llm.llm import LLM
from roseinfer.llm.request import Request

from .answers import Answer, CallAnswer, ChatAnswer, CompletionAnswer, GenerateAnswer, event
from .async_engine import AsyncEngine
from .errors import CLIENT_GONE, JSON, ApiError, api_error, refusals
from .lane import LaneFull
from .logprob_format import TokenTexts
from .output_stream import OutputStream
from .params import Defaults
from .prompts import PromptReader
from .protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerateBody,
    NamedTool,
    SamplingBody,
    TokenizeBody,
)
from .settings import ServerSettings

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The model that is served. make_llm: loads it. end_tokens, most_new_tokens: see server.params.Defaults."""

    make_llm: Callable[[], LLM]
    model_name: str
    end_tokens: tuple[int, ...] = ()
    most_new_tokens: int | None = None


class Service:
    """The API on one engine. on_failure: see AsyncEngine."""

    def __init__(
        self,
        serving: Serving,
        settings: ServerSettings,
        on_failure: Callable[[BaseException], object] | None = None,
    ) -> None:
        self.engine = AsyncEngine(serving.make_llm, settings.max_queue, settings.step_seconds, on_failure)
        self.model_name = serving.model_name
        self._serving, self._chat_template = serving, settings.chat_template

    async def start(self) -> None:
        """Start the engine, and make what needs its model. Raises what loading the model raises."""
        await self.engine.start()
        self.prompts = PromptReader(self.llm, self._chat_template)
        self.defaults = Defaults(self.llm, self._serving.end_tokens, self._serving.most_new_tokens)
        self.texts = TokenTexts(self.llm.vocabulary)

    @property
    def llm(self) -> LLM:
        return self.engine.llm

    async def complete(self, body: CompletionBody, http: HttpRequest) -> Response:
        self._check(body)
        with refusals():
            prompts, params = body.prompts(), self.defaults.of_completion(body)
        echo: list[str] = []

        async def read() -> list[Request]:
            if body.echo:
                echo.extend([await self._text(prompt, params.skip_special_tokens) for prompt in prompts])
            return await self.prompts.of_prompts(prompts, params)

        make = self._maker(CompletionAnswer, body, echo=echo, is_empty=body.max_tokens == 0)
        return await self._answer(http, len(prompts) * params.n, read, bool(body.stream), make)

    async def chat(self, body: ChatBody, http: HttpRequest) -> Response:
        self._check(body)
        with refusals():
            params = self.defaults.of_chat(body)

        async def read() -> list[Request]:
            return [await self.prompts.of_messages(body, params)]

        make = self._maker(ChatAnswer, body)
        if body.tool_choice == "required":
            make = self._maker(CallAnswer, body, finish_reason="tool_calls")
        elif isinstance(body.tool_choice, NamedTool):
            make = self._maker(CallAnswer, body, finish_reason="stop")
        return await self._answer(http, params.n, read, bool(body.stream), make)

    async def tokenize(self, body: TokenizeBody, http: HttpRequest) -> Response:
        self._require(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError("the body must have either prompt or messages", "prompt")

        async def read() -> Response:
            tokens = await self.prompts.token_ids(body)
            about = {"count": len(tokens), "max_model_len": self.llm.max_model_len, "tokens": tokens}
            written = list(map(self.llm.get_tokenizer().id_to_token, tokens)) if body.return_token_strs else None
            return JSON(about | {"token_strs": written})

        return await self._read(http, read)

    async def detokenize(self, body: DetokenizeBody, http: HttpRequest) -> Response:
        self._require(body.model)

        async def read() -> Response:
            tokenizer = self.llm.get_tokenizer()
            for token in body.tokens:
                if tokenizer.id_to_token(token) is None:
                    raise ApiError(f"tokens must be ids of the tokenizer's tokens, got {token}", "tokens")
            return JSON({"prompt": await self.prompts.text_of(body.tokens, skip_special_tokens=False)})

        return await self._read(http, read)

    async def generate(self, body: GenerateBody, http: HttpRequest) -> Response:
        self.engine.require_serving()
        with refusals():
            params = self.defaults.of_generate(body.parameters)
        before = body.inputs if body.parameters.return_full_text else ""

        def make(stream: OutputStream) -> Answer:
            return GenerateAnswer(self.model_name, stream, self.texts, before=before)

        return await self._answer(
            http, params.n, lambda: self.prompts.of_prompts([body.inputs], params), body.stream, make
        )

    def close(self) -> bool:
        """Begin no further work for prompts. Return False where a thread is still at work on one."""
        return not hasattr(self, "prompts") or self.prompts.close()

    def require_model(self, name: str | None) -> None:
        """Raise ApiError for the name of another model."""
        if name is not None and name != self.model_name:
            raise ApiError(
                f"there is no model {name!r:.100} here, only {self.model_name!r}",
                "model",
                status=404,
                code="model_not_found",
            )

    def _require(self, model: str | None) -> None:
        self.engine.require_serving()
        self.require_model(model)

    def _check(self, body: SamplingBody) -> None:
        self._require(body.model)
        if body.stream_options and not body.stream:
            raise ApiError("stream_options are for stream=true", "stream_options")

    async def _text(self, prompt: str | list[int], skip_special_tokens: bool) -> str:
        return prompt if isinstance(prompt, str) else await self.prompts.text_of(prompt, skip_special_tokens)

    async def _read(self, http: HttpRequest, read: Callable[[], Awaitable[Response]]) -> Response:
        """Return what read() returns, an answer without the engine, unless the client goes before."""
        try:
            with self._reading():
                return await first_of(http, read())
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what reading a client's texts may raise into errors of the API."""
        try:
            with refusals():
                yield
        except LaneFull as error:
            raise self.engine.full("the prompts of other requests are being read") from error

    def _maker(self, kind: type[Answer], body: SamplingBody, **settings: Any) -> Callable[[OutputStream], Answer]:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        return lambda stream: kind(self.model_name, stream, self.texts, include_usage=include_usage, **settings)

    async def _answer(
        self,
        http: HttpRequest,
        num_samples: int,
        read: Callable[[], Awaitable[list[Request]]],
        is_streamed: bool,
        make: Callable[[OutputStream], Answer],
    ) -> Response:
        """Accept a request, read its prompts, and let the engine answer.

        If it ends early, its place is given back, and work that was not begun for it never is.
        """
        if num_samples > (most := self.engine.most_samples):
            raise ApiError(f"prompts and n ask for {num_samples} samples, and {most} may run and wait", "n")
        stream = self.engine.accept(num_samples, only_whole=not is_streamed)
        try:
            with self._reading():
                requests = await first_of(http, read(), stream.failure())
            self.engine.begin(stream, requests)
            answer = make(stream)
            if not is_streamed:
                return JSON(answer.whole(await first_of(http, stream.rest())))
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy collects the chunks
            return Events(self._events(answer), partial(self.engine.abort, stream), headers)
        except BaseException as error:
            self.engine.abort(stream)
            if isinstance(error, ClientGone):
                return Response(status_code=CLIENT_GONE)
            raise

    async def _events(self, answer: Answer) -> AsyncIterator[bytes]:
        """Yield the body in chunks: one for each step's news, whatever the number of samples."""
        stream = answer.stream
        try:
            if begin := answer.first():
                yield begin
            while deltas := await stream.next():
                yield b"".join(map(answer.chunk, deltas))
            if end := answer.last():
                yield end
        except Exception as error:
            yield event(api_error(error).body())


class Events(StreamingResponse):
    """Server-sent events. end: called when the last one is sent, and when the client has gone."""

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], object], headers: dict[str, str]) -> None:
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


class ClientGone(Exception):
    """Raised when the client has closed the connection."""


async def first_of(http: HttpRequest, *works: Awaitable[T]) -> T:
    """Return what the first of these returns, or raise what it raises; the others are cancelled.

    Raises ClientGone when the client goes before.
    """
    tasks = [asyncio.ensure_future(work) for work in (*works, client_is_gone(http))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def client_is_gone(http: HttpRequest) -> NoReturn:
    """Wait until the client has gone, and raise ClientGone then."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    raise ClientGone
