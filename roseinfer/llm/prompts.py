"""Prompts in the forms that LLM takes: texts, token ids, or vLLM's dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roseinfer.arguments import unknown_name

Prompt = str | Sequence[int] | dict[str, Any]
KEYS = ("prompt", "prompt_token_ids")


def as_list(prompts: object) -> tuple[list[Any], bool]:
    """Return the prompts as a list, and whether a single one was given. Raises ValueError for anything else."""
    is_one = isinstance(prompts, str | dict) or _is_token_ids(prompts)
    if not is_one and not isinstance(prompts, Sequence):
        raise ValueError(
            f"prompts must be a text, a list of token ids, a dict, or a list of them, got {prompts!r:.100}"
        )
    return [prompts] if is_one else [*prompts], is_one  # type: ignore[misc]


def text_and_ids(prompt: object) -> tuple[str | None, object]:
    """Return a prompt's text and token ids, None for what it lacks. Raises ValueError for a dict of another form."""
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, dict):
        return None, prompt
    for key in prompt:
        if key not in KEYS and prompt[key] is not None:
            raise ValueError(f"a prompt has unknown key {unknown_name(str(key), KEYS)}")
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and token_ids is None:
        raise ValueError(f"a prompt that is a dict must have 'prompt' or 'prompt_token_ids', got {prompt!r:.100}")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"prompt['prompt'] must be a text, got {text!r:.100}")
    return text, token_ids


def _is_token_ids(prompts: object) -> bool:
    return isinstance(prompts, Sequence) and len(prompts) > 0 and all(isinstance(one, int) for one in prompts)
