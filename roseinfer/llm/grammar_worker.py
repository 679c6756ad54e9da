"""The process in which a client's grammar is compiled once, to see whether it can be.

Compiling may take hours and gigabytes, and the library's own limits bound neither.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from .grammar_compile import compile_grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def answer(text: str, **tokens: Any) -> dict[str, str]:
    """Compile a grammar over bytes, and return "refused" and the reason for one that is wrong.

    This takes about as long as over the tokens of a model. tokens: see ByteTokens. A refused grammar must not be
    compiled again: the compiler may have given up early here, and would go on where another token is known.
    """
    try:
        compile_grammar(tokenizer(json.dumps(tokens)), text)
    except ValueError as error:
        return {"refused": str(error)}
    return {}


@cache
def tokenizer(tokens: str) -> LLTokenizer:
    """Return llguidance's tokenizer over ByteTokens. tokens: its arguments as JSON."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(ByteTokens(**json.loads(tokens))))


class ByteTokens:
    """Tells llguidance of a vocabulary of bytes after as many tokens as a model has.

    The model's tokens are empty but for those that grammars may name; then one token for each byte follows.

    names: texts of the tokens with a name, such as <tool>, by their ids, which JSON writes as texts. num_tokens: the
    model's. eos_token_id: one of the tokens that end a text. The other names are those of llguidance's
    TokenizerWrapper.
    """

    bos_token_id = None

    def __init__(self, names: dict[str, str], num_tokens: int, eos_token_id: int) -> None:
        self._first_byte, self.eos_token_id = num_tokens, eos_token_id
        self.tokens = [b""] * num_tokens + [bytes([byte]) for byte in range(256)]
        self.special_token_ids = [*map(int, names)]
        for token_id, text in zip(self.special_token_ids, names.values(), strict=True):
            self.tokens[token_id] = text.encode()

    def __call__(self, text: bytes) -> list[int]:
        return [self._first_byte + byte for byte in text]
