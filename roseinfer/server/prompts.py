"""PromptReader: texts and conversations as token ids, on threads that hold up neither the event loop nor a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

from roseinfer.llm.chat import NoChatTemplate
from roseinfer.llm.grammar import grammar_text
from roseinfer.llm.grammar_tokens import named_tokens
from roseinfer.llm.llm import LLM
from roseinfer.llm.request import Request
from roseinfer.llm.worker import Worker
from roseinfer.sequence import SamplingParams

from .lane import Lane
from .protocol import ChatBody, ConversationBody, TokenizeBody

GRAMMAR_SECONDS = 5  # that a grammar may take to compile: one of 10,000 choices takes 0.2 s


class PromptReader:
    """Makes requests of an LLM from what a client sends. Methods raise ValueError for what cannot run, and LaneFull.

    Texts, conversations and grammars have a lane each: a template that hangs, or a grammar that takes long, delays
    requests of its own kind alone. A caller that is cancelled gives up its place, and no work is begun for it.
    chat_template: Jinja in place of the model's own template.
    """

    def __init__(self, llm: LLM, chat_template: str | None = None) -> None:
        self.llm, self._chat_template = llm, chat_template
        self._texts, self._conversations = Lane("texts", 2), Lane("conversations", 2)
        self._grammars = Lane("grammars", 1)
        self._template = llm.chat_template

    async def of_prompts(self, prompts: list[str | list[int]], params: SamplingParams) -> list[Request]:
        """Make a request of each prompt, one after the other, so that other requests have their turns in between."""
        return [await self._request(self._texts, partial(self._ids_of, one), params) for one in prompts]

    async def of_messages(self, body: ChatBody, params: SamplingParams) -> Request:
        return await self._request(self._conversations, partial(self._conversation_ids, body), params)

    async def token_ids(self, body: TokenizeBody) -> list[int]:
        """Return the tokens of a text or of a conversation."""
        text, special = body.prompt, body.add_special_tokens
        if text is None:
            return await self._conversations.run(lambda: self._conversation_ids(body, bool(special)))
        return await self._texts.run(lambda: self.llm.prompt_ids(text, special is not False))

    async def text_of(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """Return the text of tokens; an empty one where there is no tokenizer."""
        tokenizer = self.llm.tokenizer
        if tokenizer is None:
            return ""
        return await self._texts.run(lambda: tokenizer.decode(token_ids, skip_special_tokens))

    def _conversation_ids(self, body: ConversationBody, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of a conversation. add_special_tokens: add them to those that the template writes."""
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or []]
        try:
            if not body.must_read_tools and not self._template.reads_tools(tools, self._chat_template):
                tools = []
            text = self._template.render(
                [message.model_dump(exclude_unset=True) for message in body.messages or []],
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                tools=tools,
                chat_template=self._chat_template,
                chat_template_kwargs=body.chat_template_kwargs,
            )
        except NoChatTemplate as error:  # its message has advice for callers of LLM
            advice = "use /v1/completions, or start the server with --chat-template"
            raise ValueError(f"{error.fact}: {advice}") from error
        return self.llm.prompt_ids(text, add_special_tokens)

    def close(self) -> bool:
        """Begin no further work, and end the template's process. Return False where a thread is still at work."""
        if worker := self.__dict__.get("_grammar_worker"):
            worker.close()
        lanes = self._texts, self._conversations, self._grammars
        for lane in lanes:
            lane.close()
        self._template.close()
        return not any(lane.is_at_work for lane in lanes)

    async def _request(self, lane: Lane, read: Callable[[], list[int]], params: SamplingParams) -> Request:
        if not params.structured_outputs:
            return await lane.run(lambda: self.llm.new_request(read(), params))
        token_ids = await lane.run(read)
        return await self._grammars.run(lambda: self._structured_request(token_ids, params))

    def _structured_request(self, token_ids: list[int], params: SamplingParams) -> Request:
        """Make a request; compile its grammar first in a process that can be ended, and then for the request."""
        wanted = params.structured_outputs
        if wanted and self._grammar_tokens:
            answer = self._grammar_worker.answer(text=grammar_text(wanted), **self._grammar_tokens)
            if "error" in answer:
                raise ValueError(f"structured_outputs cannot be compiled: {answer['error']}")
            if "refused" in answer:
                raise ValueError(f"structured_outputs cannot be followed: {answer['refused']}")
        return self.llm.new_request(token_ids, params)

    @cached_property
    def _grammar_tokens(self) -> dict[str, Any]:
        """What the process has to know of the model's tokens; {} where no grammar can be followed.

        That needs llguidance, a tokenizer and an end token; without them a request is refused with its own message.
        """
        tokenizer, ends = self.llm.tokenizer, self.llm.model.config.eos_token_ids
        if not (find_spec("llguidance") and tokenizer and ends):
            return {}
        num_tokens = max(self.llm.model.config.vocab_size, 1 + max(tokenizer.get_vocab().values()))
        return {"names": named_tokens(tokenizer), "num_tokens": num_tokens, "eos_token_id": ends[0]}

    @cached_property
    def _grammar_worker(self) -> Worker:
        return Worker("roseinfer.llm.grammar_worker", GRAMMAR_SECONDS)

    def _ids_of(self, prompt: str | list[int]) -> list[int]:
        return self.llm.prompt_ids(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
