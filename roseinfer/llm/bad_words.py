"""Bad words: texts that a request does not write, as a function that changes logits."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer
from torch import Tensor

from roseinfer.graphs.upload import uploaded

from .encoding import encode


class BadWords:
    """Bans the last token of each word where the output ends with the tokens before it. words: their token ids."""

    field = "bad_words"

    def __init__(self, words: list[list[int]]) -> None:
        self.words = words

    def __call__(self, output_ids: list[int], logits: Tensor) -> Tensor:
        banned = [word[-1] for word in self.words if ends_with(output_ids, word[:-1])]
        if banned:
            logits.index_fill_(0, uploaded(banned, logits.device), float("-inf"))
        return logits


def ends_with(token_ids: list[int], end: list[int]) -> bool:
    return not end or token_ids[-len(end) :] == end


def bad_words(texts: Iterable[str], tokenizer: Tokenizer, vocab_size: int) -> BadWords:
    """Return what bans each text, after a space or not.

    Raises ValueError for a text of which the tokenizer makes no token, and for tokens that the model does not have.
    """
    words: list[list[int]] = []
    for text in texts:
        found = spellings(text.lstrip() or text, tokenizer)
        if (largest := max(map(max, found))) >= vocab_size:
            raise ValueError(
                f"bad_words has {text!r}, whose token id {largest} is out of range: vocab_size={vocab_size}"
            )
        words += found
    return BadWords(words)


def spellings(word: str, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the token ids of a word at the beginning of a text, after a space, and right after other characters."""

    def ids_of(text: str) -> list[int]:
        return encode(text, tokenizer, "each of bad_words")

    found = [ids_of(word), ids_of(" " + word)]
    # A tokenizer that puts a space before every text spells neither of these as it spells the word after a bracket.
    before, whole = ids_of(f"{word}\n"), ids_of(f"{word}\n{word}")
    if whole[: len(before)] == before:
        found.append(whole[len(before) :])
    return [spelled for i, spelled in enumerate(found) if spelled and spelled not in found[:i]]
