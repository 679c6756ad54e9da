"""What is served: prompts as texts or token ids, and how their tokens are chosen."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roseinfer.sequence import SamplingParams

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once. prompts: texts, which `encode` turns into token ids when the run begins.
    is_encoded: it was done before, and takes no time then."""

    prompts: tuple[str, ...]
    encode: Encode
    params: SamplingParams
    is_encoded: bool = False

    @property
    def prompt_lens(self) -> list[int]:
        return [len(self.encode(prompt)) for prompt in self.prompts]


def make_workload(prompts: Sequence[str], encode: Encode, params: SamplingParams, pretok: bool = False) -> Workload:
    """pretok: encode every prompt now, so that no run's time holds the tokenizer's.

    Raises ValueError for no prompts, and for one without a token.
    """
    if not prompts:
        raise ValueError("prompts must be at least one, got none")
    ids = {prompt: encode(prompt) for prompt in prompts}
    for prompt, token_ids in ids.items():
        if not token_ids:
            raise ValueError(f"prompt must have at least one token, got {prompt!r}")
    return Workload(tuple(prompts), (lambda prompt: list(ids[prompt])) if pretok else encode, params, pretok)


def words_as_tokens(vocab_size: int) -> Encode:
    """An encoding for random weights, which have no tokenizer: each word is one token, the same one every time."""
    return lambda text: [zlib.crc32(word.encode()) % vocab_size for word in text.split()]
