"""End tokens to and from the Hugging Face format, where they are a token id, a list of them, or null."""

from __future__ import annotations

from typing import Any

from .config import ModelConfig


def read_eos(hf: dict[str, Any], generation: dict[str, Any] | None) -> int | tuple[int, ...] | None:
    """Read the end tokens: generation_config.json's, and config.json's only where there is no such file.

    transformers does the same: a generation_config.json that names no end token means that no token ends the model's
    texts. roseinfer.LLM adds the tokenizer's end token, see llm/loading.py.
    """
    eos = (hf if generation is None else generation).get("eos_token_id")
    if not isinstance(eos, list):
        return eos
    return eos[0] if len(eos) == 1 else tuple(eos) or None


def write_eos(config: ModelConfig) -> int | list[int] | None:
    return list(config.eos_token_id) if isinstance(config.eos_token_id, tuple) else config.eos_token_id
