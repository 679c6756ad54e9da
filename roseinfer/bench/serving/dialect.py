"""Dialect: how a server is asked for a completion, and what its answer tells. One object for each kind of server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .plan import Planned

Json = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What one JSON body, or one event of a stream, tells.

    is_part: it belongs to the answer, even if it has only tokens without a text. num_tokens: of the whole answer, where
    it says that. is_last: nothing comes after it.
    """

    text: str = ""
    is_part: bool = False
    num_tokens: int | None = None
    is_last: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Dialect:
    """How a kind of server is asked, and read. A stream ends with the event `[DONE]`, or with one that is_last.

    path: where requests are posted. body(model, planned, stream): makes a request. read(found): reads a JSON value.
    """

    path: str
    body: Callable[[str, Planned, bool], Json]
    read: Callable[[Json], Said]

    def encoded(self, model: str, planned: Planned, stream: bool) -> bytes:
        """Return the bytes to send: the request's JSON, or the wrong body of a malformed request."""
        if planned.malformed is not None:
            return planned.malformed
        return json.dumps(self.body(model, planned, stream)).encode()


def error_of(found: Json) -> str | None:
    error = found.get("error")
    if not error:
        return None
    return str(error.get("message", error) if isinstance(error, dict) else error)[:200]


def openai_body(model: str, planned: Planned, stream: bool) -> Json:
    body = {
        "model": model,
        "prompt": planned.prompt,
        "max_tokens": planned.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


def openai_said(found: Json) -> Said:
    choices, usage = found.get("choices", ()), found.get("usage")
    text = "".join(choice.get("text") or "" for choice in choices)
    return Said(text, bool(choices), usage["completion_tokens"] if usage else None, error=error_of(found))


def llama_body(model: str, planned: Planned, stream: bool) -> Json:
    return {
        "prompt": planned.prompt,
        "n_predict": planned.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,  # every prompt is computed
        "stream": stream,
    }


def llama_said(found: Json) -> Said:
    is_last = found.get("stop") is True
    return Said(
        found.get("content", ""),
        "content" in found and not (is_last and not found["content"]),
        found.get("tokens_predicted") if is_last else None,
        is_last,
        error_of(found),
    )


OPENAI = Dialect("/v1/completions", openai_body, openai_said)
LLAMA = Dialect("/completion", llama_body, llama_said)  # llama.cpp's own: it takes prompts as token ids
