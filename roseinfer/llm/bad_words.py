"""Bad words: texts that a request does not write, as a function that changes logits."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer
from torch import Tensor


class BadWords:
    """Bans the last token of each word where the output ends with the tokens before it. words: their token ids."""

    field = "bad_words"

    def __init__(self, words: list[list[int]]) -> None:
        self.words = words

    def __call__(self, output_ids: list[int], logits: Tensor) -> Tensor:
        banned = [word[-1] for word in self.words if ends_with(output_ids, word[:-1])]
        if banned:
            logits[torch.tensor(banned, device=logits.device)] = float("-inf")
        return logits


def ends_with(token_ids: list[int], end: list[int]) -> bool:
    return not end or token_ids[-len(end) :] == end


def bad_words(texts: Iterable[str], tokenizer: Tokenizer, vocab_size: int) -> BadWords:
    """Each text as it stands, and as it stands after a space, as in vLLM. Raises ValueError for tokens that the model
    does not have."""
    words: list[list[int]] = []
    for text in texts:
        alone, after_space = (
            tokenizer.encode(start + text.lstrip(), add_special_tokens=False).ids for start in ("", " ")
        )
        words.append(alone)
        # A tokenizer with a piece for the space alone, or without spaces, has no other tokens for it.
        if after_space[0] != alone[0] and len(after_space) == len(alone):
            words.append(after_space)
        if (largest := max(alone + after_space)) >= vocab_size:
            raise ValueError(
                f"bad_words has {text!r}, whose token id {largest} is out of range: vocab_size={vocab_size}"
            )
    return BadWords(words)
