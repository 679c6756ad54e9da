"""What is served: prompts as texts or token ids, and how their tokens are chosen."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roseinfer.sequence import SamplingParams

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once. `encode` turns their prompts into token ids when the run begins.

    is_encoded: the prompts were encoded before, and take no time in the run.
    """

    prompts: tuple[str, ...]
    encode: Encode
    params: SamplingParams
    is_encoded: bool = False

    @property
    def prompt_lens(self) -> list[int]:
        return [len(self.encode(prompt)) for prompt in self.prompts]


def make_workload(prompts: Sequence[str], encode: Encode, params: SamplingParams, pretok: bool = False) -> Workload:
    """Make a workload. pretok: encode every prompt now, so that no run's time includes the tokenizer's.

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
    """Make an encoding for random weights, which have no tokenizer: each word is one token, always the same one."""
    return lambda text: [zlib.crc32(word.encode()) % vocab_size for word in text.split()]
