"""GrammarTokens: a tokenizer as llguidance asks for one, for every kind of tokenizer that is served."""

from __future__ import annotations

from functools import cached_property

from tokenizers import Tokenizer

from .encoding import encode
from .vocabulary import Vocabulary


class GrammarTokens:
    """Tells llguidance the bytes that each token adds to a text.

    llguidance reads tokenizer.json too, but takes SentencePiece's "▁" for a character of the text.

    vocabulary: the tokenizer's. vocab_size: the model's, which may have more rows or fewer than there are tokens.
    eos_token_id: one of the tokens that end a text. The other names are those of llguidance's TokenizerWrapper. Raises
    ValueError for a tokenizer of whole words: where a grammar leaves only a space, llguidance needs a token for it.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self._tokenizer = vocabulary.tokenizer
        self.special_token_ids = [*named_tokens(self._tokenizer)]
        num_tokens = 1 + max(self._tokenizer.get_vocab().values())
        self.tokens = [vocabulary.bytes_of(i) for i in range(num_tokens)]
        self.tokens += [b""] * (vocab_size - num_tokens)  # no text leads to these
        if b" " not in self._id_of:
            raise ValueError(
                "structured_outputs need a tokenizer that spells any text, this one has no token for a space"
            )

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens whose bytes are exactly these.

        They are the tokenizer's own choice, or the longest ones where it adds a space to the text or drops one.
        """
        try:
            token_ids = encode(text.decode(), self._tokenizer, "a grammar")
        except ValueError:  # a part of a character, or a text without a token
            return self._longest(text)
        is_exact = b"".join(self.tokens[i] for i in token_ids) == text
        return token_ids if is_exact else self._longest(text)

    def _longest(self, text: bytes) -> list[int]:
        found, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._most_bytes), start, -1)
            end = next((end for end in ends if text[start:end] in self._id_of), None)
            if end is None:
                break  # no token spells the rest
            found.append(self._id_of[text[start:end]])
            start = end
        return found

    @cached_property
    def _id_of(self) -> dict[bytes, int]:
        special = {*self.special_token_ids}
        return {data: i for i, data in enumerate(self.tokens) if data and i not in special}

    @cached_property
    def _most_bytes(self) -> int:
        return max(map(len, self._id_of))


def named_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the tokens that a Lark grammar may name, as <tool>, by their ids. No text spells them."""
    added = tokenizer.get_added_tokens_decoder().items()
    return {i: token.content for i, token in added if token.special or is_bracketed(token.content)}


def is_bracketed(name: str) -> bool:
    return name.startswith("<") and name.endswith(">")
