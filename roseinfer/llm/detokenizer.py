"""The text of a request while its tokens come, in whole characters, and the bytes of a byte-level tokenizer's tokens.

The text is what the tokenizer's `decode` makes of all tokens, at a cost a token that does not grow with their number.
Two kinds of tokenizers need two ways:

byte-level (GPT-2, Llama 3, Qwen): a token is some bytes, and may end within a UTF-8 character. An incremental decoder
    keeps those that are no character yet (ByteText).
pieces of text (Llama 2 and others after SentencePiece): a token has one text at the beginning, where a leading space is
    dropped, and one anywhere else. See pieces.py.

A prompt may end within a character. The text begins after the prompt's own characters. A character that the prompt
begins and the new tokens complete belongs to the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from tokenizers import Tokenizer

from .stop_strings import first_stop, possible_stop


class Text(Protocol):
    """Turns tokens to text, one at a time."""

    def feed(self, token_id: int) -> str:
        """Return the text that this token settles, which is often a little less or more than its own."""

    def rest(self) -> str:
        """Return the text that was kept back, as no more tokens come."""

    def num_before(self, token_id: int) -> int:
        """Return how many characters stand before this token that `feed` has not returned yet."""


class Detokenizer:
    """The text of one request's new tokens, cut before the stop string that is complete first. A Vocabulary makes it.

    keeps_stop: cut it after the stop string.
    """

    def __init__(self, text: Text, stop: tuple[str, ...] = (), keeps_stop: bool = False) -> None:
        self._text, self._stop, self._keeps_stop = text, stop, keeps_stop
        self._first = {text[0] for text in stop}
        self._held = ""  # may be the beginning of a stop string
        self._shown: list[str] = []

    @property
    def text(self) -> str:
        """The text that is settled: it is the beginning of every later one."""
        self._shown = ["".join(self._shown)]
        return self._shown[0]

    def add(self, token_id: int, may_stop: bool = True) -> str | None:
        """Take a new token, and return the stop string that it completes, if it does.

        may_stop: False for a token that may complete one without ending the text.
        """
        new = self._text.feed(token_id)
        if self._held or not self._first.isdisjoint(new):
            return self._search(new, may_stop)
        self._shown.append(new)  # most tokens: no stop string begins in them
        return None

    def finish(self, may_stop: bool = True) -> str | None:
        """Show what was held back, as no more tokens come. Return a stop string, like add."""
        stop = self._search(self._text.rest(), may_stop)
        self._shown.append(self._held)
        self._held = ""
        return stop

    def _search(self, new: str, may_stop: bool) -> str | None:
        searched, text, self._held = len(self._held), self._held + new, ""
        if may_stop and (found := first_stop(text, self._stop, searched)):
            start, stop = found
            self._shown.append(text[: start + len(stop)] if self._keeps_stop else text[:start])
            return stop
        held = possible_stop(text, self._stop)
        self._shown.append(text[:held])
        self._held = text[held:]
        return None


def byte_of_character() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for (GPT-2: Radford et al., 2019).

    Visible characters of Latin-1 stand for themselves; the other bytes are, in order, the characters from 256 on.
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


class ByteTable(dict[int, bytes]):
    """The bytes of a byte-level tokenizer's tokens, looked up when first asked for. hidden: tokens that are no text."""

    def __init__(self, tokenizer: Tokenizer, hidden: set[int]) -> None:
        super().__init__(dict.fromkeys(hidden, b""))
        self._tokenizer, self._byte_of = tokenizer, byte_of_character()

    def __missing__(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) or ""  # models pad their vocabularies with ids that no token has
        if all(character in self._byte_of for character in token):
            self[token_id] = bytes(self._byte_of[character] for character in token)
        else:  # an added token, spelled as it is
            self[token_id] = token.encode()
        return self[token_id]

    def bytes_of(self, token_id: int) -> bytes:
        return self[token_id]

    def text(self, prompt_ids: Iterable[int]) -> ByteText:
        return ByteText(self, prompt_ids)


class ByteText:
    def __init__(self, table: ByteTable, prompt_ids: Iterable[int]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(b"".join(map(table.__getitem__, prompt_ids)))
        self._within_prompts_character = bool(self._decoder.getstate()[0])

    def feed(self, token_id: int) -> str:
        return self._decode(self._table[token_id])

    def rest(self) -> str:
        return self._decode(b"", final=True)

    def num_before(self, token_id: int) -> int:
        """Count the "�" of a begun character that this token does not continue; one from the prompt is the prompt's."""
        begun = self._decoder.getstate()[0]
        if begins_utf8(begun + self._table[token_id][:1]):
            return 0
        return len(begun.decode(errors="replace")) - self._within_prompts_character

    def _decode(self, data: bytes, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if text and self._within_prompts_character:  # if it stays incomplete, the prompt's text ends with its "�"
            self._within_prompts_character = False
            return text.removeprefix("�")
        return text


def begins_utf8(data: bytes) -> bool:
    """Whether these bytes are valid UTF-8, or become so with more bytes."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True
