"""Vocabulary: a tokenizer as all requests share it, which makes their detokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

from .detokenizer import ByteTable, Detokenizer, Text
from .pieces import PieceTable


class TokenOffsets:
    """Finds where each token begins in a text, in characters. A Vocabulary makes it."""

    def __init__(self, text: Text) -> None:
        self._text, self._length = text, 0

    def add(self, token_id: int) -> int:
        """Take the next token and return its place: one that continues a character begins where the character does."""
        place = self._length + self._text.num_before(token_id)
        self._length += len(self._text.feed(token_id))
        return place


class Vocabulary:
    """The part of a tokenizer that all requests share. Raises ValueError for a decoder that looks beyond a token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self._kinds = tokenizer, decoder_kinds(tokenizer)
        self._tables = {True: self._new_table(skip_special_tokens=True)}

    def detokenizer(
        self,
        prompt_ids: Iterable[int] = (),
        stop: tuple[str, ...] = (),
        keeps_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> Detokenizer:
        """Return the detokenizer of one request. Its text continues the prompt's and repeats none of it."""
        return Detokenizer(self._table(skip_special_tokens).text(prompt_ids), stop, keeps_stop)

    def offsets(self, prompt_ids: Iterable[int] = (), skip_special_tokens: bool = True) -> TokenOffsets:
        """Return a TokenOffsets, which finds the places of tokens in the text that detokenizer() makes of them."""
        return TokenOffsets(self._table(skip_special_tokens).text(prompt_ids))

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text that has begun; for a special token, its name.

        Joined, the bytes of all tokens are the text, except for a space before the first word, which some tokenizers
        drop.
        """
        return self._table(skip_special_tokens=False).bytes_of(token_id)

    def text_of(self, token_id: int) -> str:
        """Return bytes_of as a text. A byte of a character that needs other tokens is written as \\xf0."""
        return self.bytes_of(token_id).decode("utf-8", "backslashreplace")

    def _table(self, skip_special_tokens: bool) -> ByteTable | PieceTable:
        if skip_special_tokens not in self._tables:
            self._tables[skip_special_tokens] = self._new_table(skip_special_tokens)
        return self._tables[skip_special_tokens]

    def _new_table(self, skip_special_tokens: bool) -> ByteTable | PieceTable:
        hidden = hidden_ids(self.tokenizer) if skip_special_tokens else set()
        if self._kinds == ["ByteLevel"]:
            return ByteTable(self.tokenizer, hidden)
        return PieceTable(self.tokenizer, hidden, "ByteFallback" in self._kinds)


NO_DECODER: dict[str, Any] = {"type": "Sequence", "decoders": []}


def decoder_kinds(tokenizer: Tokenizer) -> list[str]:
    """Return the steps of a tokenizer's decoder. Raises ValueError if they look beyond a token and a run of bytes."""
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else NO_DECODER
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    # Once pieces are fused, what is left to do may touch the very first character, and no other.
    local = set(kinds[:fused]) <= {"Replace", "ByteFallback", "Metaspace", "Strip", "WordPiece"}
    at_start = all(step["type"] == "Strip" and step["start"] <= 1 and not step["stop"] for step in steps[fused + 1 :])
    if kinds != ["ByteLevel"] and not (local and at_start):
        raise ValueError(f"the tokenizer's decoder ({', '.join(kinds)}) is not supported: it looks beyond a token")
    return kinds


def hidden_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of special tokens, which are no text."""
    return {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
