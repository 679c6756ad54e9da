"""ChatServer: a learner's server of exercise 20.1 behind HTTP, as far as the official client needs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from roseinfer.llm.llm import LLM
from roseinfer.llm.vocabulary import Vocabulary
from roseinfer.sampling_params import SamplingParams
from roseinfer.sequence import Sequence
from roseinfer.server.run import listen, url_of


class ChatServer:
    """A running server. server_class: as exercise 20.1 asks for it. url: where it answers, until the process ends."""

    def __init__(self, server_class: type[Any], llm: LLM) -> None:
        self.server_class, self.llm, self.model = server_class, llm, llm.spec
        self.vocabulary = Vocabulary(llm.get_tokenizer())
        self.listening = listen("127.0.0.1", 0)
        self.listening.listen()  # who calls before the loop runs waits for it
        self.url = url_of(self.listening)
        Thread(target=lambda: asyncio.run(self.serve()), daemon=True).start()

    async def serve(self) -> None:
        self.server = self.server_class(self.llm.engine)
        app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])
        await uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off")).serve(sockets=[self.listening])

    async def answer(self, request: Request) -> StreamingResponse:
        """Answer a conversation by a stream of events."""
        seq = await asyncio.to_thread(self.sequence_of, await request.json())  # a template may take longer than a step
        return StreamingResponse(self.events(seq), media_type="text/event-stream")

    def sequence_of(self, body: dict[str, Any]) -> Sequence:
        """Make the sequence that answers a conversation. Raises ValueError for one that can never run."""
        text = self.llm.chat_template.render(body["messages"])
        params = SamplingParams(max_tokens=body["max_tokens"], temperature=0)
        return self.llm.new_request(self.llm.prompt_ids(text, False), params).samples[0].seq

    async def events(self, seq: Sequence) -> AsyncIterator[str]:
        """Make an event of each new piece of text: a line that begins with `data:`, and an empty line."""
        detokenizer, num_sent = self.vocabulary.detokenizer(seq.token_ids), 0
        async with aclosing(self.server.tokens(seq)) as tokens:
            async for token in tokens:
                detokenizer.add(token)
                delta = {"content": detokenizer.text[num_sent:]}
                yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"
                num_sent = len(detokenizer.text)
        yield "data: [DONE]\n\n"
