"""BadAnswer: a method of an entry returned what cannot be used. No line of the entry is in its traceback."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any


class BadAnswer(ValueError):
    """method: of the entry. wrong: what it must return, and what it did. code: of the method, None for a C function."""

    def __init__(self, method: Callable[..., Any], wrong: str) -> None:
        super().__init__(f"{method.__name__} {wrong}")
        self.code: CodeType | None = getattr(method, "__code__", None)
