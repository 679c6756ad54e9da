"""What a server says when it is ready: where its page is, and a request that one can paste into another terminal."""

from __future__ import annotations

import json
from typing import Any

from roseinfer.llm.llm import LLM

from .settings import ServerSettings

MAX_TOKENS = 32
TEXT: tuple[str, dict[str, Any]] = ("completions", {"prompt": "Return a new"})
ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # an address to listen at, and one to ask


def greeting(url: str, settings: ServerSettings, request: tuple[str, dict[str, Any]] = TEXT) -> str:
    """Two lines for a terminal. request: the end of a path, and its body."""
    for listened, asked in ANYWHERE.items():
        url = url.replace(f"//{listened}:", f"//{asked}:")
    # Not the key itself: what is said here may be kept in a log.
    key = ' -H "Authorization: Bearer $ROSEINFER_API_KEY"' if settings.api_key else ""
    where = "a terminal whose ROSEINFER_API_KEY is the key" if settings.api_key else "a terminal"
    path, body = request
    data = json.dumps(body | {"max_tokens": MAX_TOKENS})
    curl = f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{data}'"
    return f"a page to try it: {url}/\nor from {where}: {curl}"


def request_for(llm: LLM, chat_template: str | None) -> tuple[str, dict[str, Any]]:
    """Make a request that this model can answer: a conversation, a text to continue, or tokens."""
    if llm.tokenizer is None:
        return "completions", {"prompt": [1, 2, 3]}
    try:
        llm.chat_template.source(chat_template)
    except ValueError:  # it has none, or none that can be read
        return TEXT
    return "chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}
