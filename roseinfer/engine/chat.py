"""Conversations as the text that a model was trained on, by the chat template in its folder."""

from __future__ import annotations

from typing import Any

from roseinfer.models import ModelLoadError, tokenizer_folder

Message = dict[str, Any]  # {"role": "user", "content": "..."}


class ChatTemplate:
    """The template of a model: chat_template.jinja, or `chat_template` in tokenizer_config.json.

    transformers reads and renders it, in its sandbox. Raises ModelLoadError where there is none.
    """

    def __init__(self, spec: str) -> None:
        from transformers import AutoTokenizer  # seconds, for conversations alone

        folder = tokenizer_folder(spec)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as e:  # whatever a file there may make transformers raise
            raise ModelLoadError(f"{folder}: its chat template cannot be read: {one_line(e)}") from e
        if not self._tokenizer.chat_template:
            raise ModelLoadError(
                f"{spec!r} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "write the prompt yourself and use generate"
            )

    def render(self, messages: list[Message], add_generation_prompt: bool, continue_final_message: bool) -> str:
        """The text of a conversation, with special tokens such as BOS in it: it is encoded as it is.

        add_generation_prompt: end where the assistant begins to answer. continue_final_message: end within the last
        message, for more of it. Raises ValueError for both, for wrong messages, and for what the template refuses.
        """
        import jinja2

        check_messages(messages)
        if add_generation_prompt and continue_final_message:
            raise ValueError(
                "continue_final_message=True goes on with the last message and add_generation_prompt=True begins a new "
                "one: set one of them to False"
            )
        try:
            return self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )  # fmt: skip
        except (jinja2.TemplateError, ValueError, TypeError) as e:
            raise ValueError(f"the chat template refuses these messages: {one_line(e)}") from e


def check_messages(messages: object) -> None:
    """Raises ValueError unless it is a conversation."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a non-empty list of messages, got {messages!r:.100}")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ValueError(
                f"messages[{i}] must be a dict with the texts 'role' and 'content', got {message!r:.100}"
            )


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
