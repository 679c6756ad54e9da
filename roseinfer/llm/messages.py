"""Messages of a conversation, as OpenAI's API has them, made into what chat templates read."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]  # {"role": "user", "content": "..."}
TEXT_PARTS = ("text", "input_text", "output_text")


def template_messages(messages: object) -> list[Message]:
    """Return messages whose content is one text, as chat templates read them.

    None becomes an empty text, and parts are joined by newlines, as in vLLM. The arguments of tool calls become dicts.
    Raises ValueError unless it is a conversation of texts.
    """
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a non-empty list of messages, got {messages!r:.100}")
    return [_template_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _template_message(name: str, message: object) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"{name} must be a dict with the text 'role' and 'content', got {message!r:.100}")
    calls = message.get("tool_calls")
    if "content" not in message and not calls:
        raise ValueError(f"{name} must be a dict with the text 'role' and 'content', got {message!r:.100}")
    made = {key: value for key, value in message.items() if value is not None}
    made["content"] = _text(f"{name}['content']", message.get("content"))
    if calls:
        made["tool_calls"] = _with_arguments(f"{name}['tool_calls']", calls)
    return made


def _text(name: str, content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ValueError(f"{name} must be a text, None, or a list of text parts, got {content!r:.100}")
    return "\n".join(_part(f"{name}[{i}]", part) for i, part in enumerate(content))


def _part(name: str, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
        raise ValueError(
            f"{name} must be {{'type': 'text', 'text': ...}}: models here read text alone, got {part!r:.100}"
        )
    return part["text"]


def _with_arguments(name: str, calls: object) -> list[dict[str, Any]]:
    """Return tool calls with their arguments as dicts: OpenAI's API writes JSON, and templates read dicts."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError(f"{name} must be a list of dicts, got {calls!r:.100}")
    made = []
    for i, call in enumerate(calls):
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            text = function["arguments"]
            try:
                arguments = json.loads(text) if text else {}
            except ValueError as error:
                raise ValueError(f"{name}[{i}]: arguments must be JSON, got {text!r:.100}") from error
            call = call | {"function": function | {"arguments": arguments}}
        made.append(call)
    return made
