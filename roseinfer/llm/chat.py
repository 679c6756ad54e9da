"""Conversations as the text that a model was trained on, by the chat template in its folder."""

from __future__ import annotations

import re
from typing import Any

from roseinfer.models import ModelLoadError, ModelTokenizer, model_tokenizer

from .loading import NO_FILES
from .messages import Message, template_messages
from .worker import Worker

RENDER_SECONDS = 10
MOST_CHARACTERS = 10_000_000


class NoChatTemplate(ModelLoadError):
    """Raised for a model without a chat template. The message says what a caller of LLM can do about it.

    fact: the message without that advice, for callers whose users can give something else.
    """

    def __init__(self, fact: str) -> None:
        self.fact = fact
        super().__init__(f"{fact}: write the prompt yourself and use generate, or give chat_template")


class ChatTemplate:
    """The template of a model: chat_template.jinja, `chat_template` in tokenizer_config.json, or a GGUF file's.

    transformers renders it in its sandbox, in a process that ends when a template takes too long or too much memory.

    Args:
        files: the model's tokenizer with its templates; None for a model without, whose conversations bring their own.
        name: the model's, for errors.
    """

    def __init__(self, files: ModelTokenizer | None, name: str) -> None:
        self._name = name
        self._templates = files.chat_templates if files else {}
        self._place = files.template_place if files else NO_FILES
        self._special_tokens = files.special_tokens if files else {}
        self._renderer = Worker("roseinfer.llm.template_worker", RENDER_SECONDS)

    @classmethod
    def of(cls, spec: str) -> ChatTemplate:
        """Return the template of a model, which is not loaded, or of a tokenizer alone. Raises ModelLoadError."""
        return cls(model_tokenizer(spec), repr(spec))

    def close(self) -> None:
        """End the process and its rendering. No template is rendered after that."""
        self._renderer.close()

    def render(
        self,
        messages: list[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation, with special tokens such as BOS in it: it is encoded as it is.

        add_generation_prompt: end where the assistant begins to answer. continue_final_message: end within the last
        message, for more of it. tools: JSON schemas of functions, for a template that reads them. chat_template: in
        place of the model's own, or the name of one of several. chat_template_kwargs: other names that the template
        reads.

        Raises ValueError for both of the first two, for wrong messages, for what the template refuses, and for
        a template that takes more than RENDER_SECONDS or too much memory; NoChatTemplate (a ValueError) for a model
        without a template.
        """
        conversation = template_messages(messages)
        if add_generation_prompt and continue_final_message:
            raise ValueError(
                "continue_final_message=True goes on with the last message and add_generation_prompt=True begins a new "
                "one: set one of them to False"
            )
        check_tools(tools)
        if tools and not self.reads_tools(tools, chat_template):
            raise ValueError(
                "tools cannot be told to the model: its chat template does not read them. Describe them in a message"
            )
        request = {
            "conversations": [conversation],
            "chat_template": self.source(chat_template, tools),
            "tools": tools or None,
            "template_kwargs": self._special_tokens | checked_kwargs(chat_template_kwargs),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "most_characters": MOST_CHARACTERS,
        }
        try:
            answer = self._renderer.answer(**request)
        except (TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"messages, tools and chat_template_kwargs must hold what JSON can: {e}") from e
        if "error" in answer:
            raise ValueError(f"the chat template refuses these messages: {answer['error']}")
        return answer["text"]

    def reads_tools(self, tools: list[dict[str, Any]] | None, chat_template: str | None = None) -> bool:
        """Whether the template tells the model of tools. Raises as source does."""
        return bool(re.search(r"\btools\b", self.source(chat_template, tools)))

    def source(self, chat_template: str | None = None, tools: list[dict[str, Any]] | None = None) -> str:
        """Return the template as Jinja: the one that was given, else the model's.

        Raises NoChatTemplate for a model without one, and ValueError for one that is not a text.
        """
        if not isinstance(chat_template, str | None):
            raise ValueError(f"chat_template must be a text, got {chat_template!r:.100}")
        if chat_template:
            return self._templates.get(chat_template, chat_template)
        if not self._templates:
            raise NoChatTemplate(f"{self._name} has no chat template ({self._place})")
        for name in (["tool_use"] if tools else []) + ["default"]:
            if name in self._templates:
                return self._templates[name]
        names = ", ".join(sorted(self._templates))
        raise ModelLoadError(f"{self._name} has several chat templates and none is the usual one: name one of {names}")


OWN_ARGUMENTS = ("messages", "conversations", "tools", "chat_template", "add_generation_prompt",
                 "continue_final_message", "return_assistant_tokens_mask")  # fmt: skip


def checked_kwargs(given: dict[str, Any] | None) -> dict[str, Any]:
    """Return chat_template_kwargs as a dict. Raises ValueError unless its keys are names that no argument has."""
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"chat_template_kwargs must be a dict with names as keys, got {given!r:.100}")
    for name in OWN_ARGUMENTS:
        if name in given:
            raise ValueError(f"chat_template_kwargs has {name!r}, which is set on its own")
    return given


def check_tools(tools: object) -> None:
    """Raise ValueError unless tools is None or a list of dicts."""
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ValueError(f"tools must be a list of dicts such as {{'type': 'function', ...}}, got {tools!r:.100}")
