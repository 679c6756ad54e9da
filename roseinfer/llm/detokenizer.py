"""The text of a request while its tokens come: whole characters, and nothing that may yet become a stop string.

The text is what the tokenizer's `decode` makes of all tokens, at a cost a token that does not grow with their number.
Two kinds of tokenizers need two ways:

byte-level (GPT-2, Llama 3, Qwen): a token is some bytes, and may end within a UTF-8 character. An incremental decoder
    keeps those that are no character yet.
pieces of text (Llama 2 and others after SentencePiece): a token has one text at the beginning, where a leading space is
    dropped, and one anywhere else. Characters without a piece are spelled as a run of byte tokens, which the tokenizer
    judges as a whole: as long as a run goes on, none of it is shown.

A prompt may end within a character or a run. The text begins after the prompt's own characters. A character that the
prompt begins and the new tokens complete belongs to the text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from copy import copy
from typing import Any, Protocol

from tokenizers import Tokenizer

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Text(Protocol):
    """Turns tokens to text, one at a time."""

    def feed(self, token_id: int) -> str:
        """Return the text that this token settles, which is often a little less or more than its own."""

    def rest(self) -> str:
        """Return the text that was kept back, as no more tokens come."""

    def num_before(self, token_id: int) -> int:
        """Return how many characters stand before this token that `feed` has not returned yet."""


class TokenOffsets:
    """Finds where each token begins in a text, in characters. A Vocabulary makes it."""

    def __init__(self, text: Text) -> None:
        self._text, self._length = text, 0

    def add(self, token_id: int) -> int:
        """Take the next token and return its place: one that continues a character begins where the character does."""
        place = self._length + self._text.num_before(token_id)
        self._length += len(self._text.feed(token_id))
        return place


class Detokenizer:
    """The text of one request's new tokens, cut before the stop string that is complete first. A Vocabulary makes it.

    keeps_stop: cut it after the stop string.
    """

    def __init__(self, text: Text, stop: tuple[str, ...], keeps_stop: bool = False) -> None:
        self._text, self._stop, self._keeps_stop = text, stop, keeps_stop
        self._first = {text[0] for text in stop}
        self._shown: list[str] = []
        self._held = ""  # may be the beginning of a stop string

    @property
    def text(self) -> str:
        """The text that is settled: it is the beginning of every later one."""
        self._shown = ["".join(self._shown)]
        return self._shown[0]

    def add(self, token_id: int, may_stop: bool = True) -> str | None:
        """Take a new token and return the stop string that it completes, or None. Add nothing after a stop string.

        may_stop: False for a token that may complete one without ending the text.
        """
        new = self._text.feed(token_id)
        if self._held or not self._first.isdisjoint(new):
            return self._search(new, may_stop)
        self._shown.append(new)  # most tokens: no stop string begins in them
        return None

    def finish(self, may_stop: bool = True) -> str | None:
        """Show what was held back, as no more tokens come. Return the stop string that is complete now, or None."""
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


def first_stop(text: str, stops: Iterable[str], searched: int = 0) -> tuple[int, str] | None:
    """Return (where it begins, the stop string) of the stop string that is complete first as text is read, or None.

    If several are, it is the longest. A stop string that ends within the first `searched` characters does not count.
    """
    starts = ((stop, text.find(stop, max(0, searched - len(stop) + 1))) for stop in stops)
    found = [(start + len(stop), start, stop) for stop, start in starts if start >= 0]
    return min(found)[1:] if found else None


def possible_stop(text: str, stops: Iterable[str]) -> int:
    """Return where the longest end of text that begins a stop string starts; len(text) where there is no such end."""
    first = len(text)
    for stop in stops:
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1), first)
        while start >= 0 and not stop.startswith(text[start:]):
            start = text.find(stop[0], start + 1, first)
        first = start if start >= 0 else first
    return first


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


# Bytes


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


# Pieces


class PieceTable(dict[int, str]):
    """The text of each token that is not the first; the tokenizer gives it when it is first asked for.

    hidden: special tokens that are not shown.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: set[int], byte_fallback: bool) -> None:
        super().__init__()
        self._tokenizer, self._hidden = tokenizer, hidden
        vocabulary = tokenizer.get_vocab()
        byte_tokens = ((i, BYTE_TOKEN.fullmatch(token)) for token, i in vocabulary.items() if byte_fallback)
        self.bytes = {i: int(match[1], 16) for i, match in byte_tokens if match}
        # Tokens are decoded after this one, so that they are not the first.
        candidates = (i for i in sorted(vocabulary.values()) if i not in self.bytes and tokenizer.decode([i]))
        self._before = next(candidates)
        self._before_length = len(self.decode([self._before], first=True))

    def __missing__(self, token_id: int) -> str:
        self[token_id] = self.decode([token_id])
        return self[token_id]

    def decode(self, token_ids: list[int], first: bool = False) -> str:
        skip = bool(self._hidden)
        if first:
            return self._tokenizer.decode(token_ids, skip_special_tokens=skip)
        return self._tokenizer.decode([self._before, *token_ids], skip_special_tokens=skip)[self._before_length :]

    def bytes_of(self, token_id: int) -> bytes:
        return bytes([self.bytes[token_id]]) if token_id in self.bytes else self[token_id].encode()

    def is_hidden(self, token_id: int) -> bool:
        return token_id in self._hidden or self._tokenizer.id_to_token(token_id) is None

    def text(self, prompt_ids: Iterable[int]) -> PieceText:
        return PieceText(self, prompt_ids)


class PieceText:
    def __init__(self, table: PieceTable, prompt_ids: Iterable[int]) -> None:
        self._table = table
        self._begun = False  # whether any token was no special one
        self._run: list[int] = []  # byte tokens that others may follow
        self._num_of_prompt = 0  # tokens of the run that belong to the prompt
        for token_id in prompt_ids:
            self.feed(token_id)
        self._num_of_prompt = len(self._run)

    def feed(self, token_id: int) -> str:
        if token_id in self._table.bytes:
            self._run.append(token_id)
            return ""
        if self._begun and not self._run:
            return self._table[token_id]
        if self._table.is_hidden(token_id):
            return ""
        return self.rest() + (self._table[token_id] if self._begun else self._decode([token_id]))

    def rest(self) -> str:
        if not self._run:
            return ""
        start = self._num_prompt_characters()
        run, self._run, self._num_of_prompt = self._run, [], 0
        return self._decode(run)[start:]

    def num_before(self, token_id: int) -> int:
        """Count the characters of the run of byte tokens: all of them if this token ends it, else the complete ones."""
        if token_id not in self._table.bytes and not self._table.is_hidden(token_id):
            return len(copy(self).rest())
        whole = self._run_bytes(len(self._run)), self._run_bytes(self._num_of_prompt)
        of_run, of_prompt = (len(data.decode(errors="ignore")) for data in whole)
        return of_run - of_prompt

    def _run_bytes(self, num_tokens: int) -> bytes:
        return bytes(self._table.bytes[token_id] for token_id in self._run[:num_tokens])

    def _num_prompt_characters(self) -> int:
        """Return how many characters of the run's text the prompt's text has already."""
        run, num_bytes = self._run, self._num_of_prompt
        data = self._run_bytes(len(run))
        try:
            data.decode()
        except UnicodeDecodeError:
            return num_bytes  # the tokenizer makes one "�" of each byte
        complete = data[:num_bytes].decode(errors="ignore").encode()
        return len(self._table.decode(run[: len(complete)], first=not self._begun)) if complete else 0

    def _decode(self, token_ids: list[int]) -> str:
        first, self._begun = not self._begun, True
        return self._table.decode(token_ids, first)
