"""The text of tokens that are pieces of text, for tokenizers after SentencePiece.

Characters without a piece are spelled as a run of byte tokens, which the tokenizer judges as a whole: as long as a run
goes on, none of it is shown. A prompt may end within a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import copy

from tokenizers import Tokenizer

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


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
