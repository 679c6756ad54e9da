"""PromptReader: texts and conversations as token ids, on a thread that holds up neither the event loop nor a step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from roseinfer.llm.chat import ChatTemplate
from roseinfer.llm.llm import LLM
from roseinfer.llm.request import Request
from roseinfer.sequence import SamplingParams

T = TypeVar("T")
NUM_THREADS = 2


class PromptReader:
    """Makes requests of an LLM's from what a client sends. Every method raises ValueError for what cannot run."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="roseinfer prompts")
        try:
            self._template: ChatTemplate | ValueError = llm.chat_template
        except ValueError as error:
            self._template = error

    async def of_prompts(self, prompts: list[str | list[int]], params: SamplingParams) -> list[Request]:
        return await self._in_thread(lambda: [self._request(one, params, True) for one in prompts])

    async def of_messages(
        self,
        messages: list[dict[str, Any]],
        params: SamplingParams,
        **template_settings: Any,
    ) -> Request:
        """The request of a conversation. template_settings: see ChatTemplate.render."""

        def make() -> Request:
            if isinstance(self._template, ValueError):
                raise self._template
            text = self._template.render(messages, **template_settings)
            token_ids = self.llm.prompt_ids(text, add_special_tokens=False)  # they are the template's business
            return self.llm.new_request(token_ids, params)

        return await self._in_thread(make)

    def _request(self, prompt: str | list[int], params: SamplingParams, add_special_tokens: bool) -> Request:
        token_ids = self.llm.prompt_ids(prompt, add_special_tokens) if isinstance(prompt, str) else prompt
        return self.llm.new_request(token_ids, params)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
