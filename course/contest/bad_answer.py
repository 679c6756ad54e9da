"""BadAnswer: raised when a method of an entry has returned a value that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from types import CodeType
from typing import Any


class BadAnswer(ValueError):
    """An error that names the entry's method that returned a wrong value: no line of the entry is in the traceback.

    method: of the entry.
    wrong: what it must return, and what it returned.
    code: of the method, to find its line; None for a function written in C.
    """

    def __init__(self, method: Callable[..., Any], wrong: str) -> None:
        super().__init__(f"{method.__name__} {wrong}")
        self.code: CodeType | None = getattr(method, "__code__", None)


def as_token_ids(value: object, vocab_size: int) -> list[int] | None:
    """Return the ids in a list, tuple, array or tensor as ints; None if the model could not look them up."""
    tokens: Any = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(tokens, list | tuple) or not all(_is_token(token, vocab_size) for token in tokens):
        return None
    return [int(token) for token in tokens]


def _is_token(token: object, vocab_size: int) -> bool:
    return isinstance(token, Integral) and not isinstance(token, bool) and 0 <= int(token) < vocab_size
