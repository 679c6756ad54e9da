"""The limits on grammars that clients may ask for: a thread compiles them, and each step with one takes longer."""

from __future__ import annotations

import json

from roseinfer.llm.grammar import MOST_CHARACTERS
from roseinfer.structured_outputs import StructuredOutputsParams

MOST_CHOICES = 10_000  # compiled in 0.2 s


def check_size(wanted: StructuredOutputsParams) -> None:
    """Raise ValueError for a grammar that is too large."""
    if wanted.choice is not None and len(wanted.choice) > MOST_CHOICES:
        raise ValueError(f"choice must have at most {MOST_CHOICES:,} texts, got {len(wanted.choice):,}")
    try:
        _check_characters(wanted)
    except RecursionError:
        raise ValueError("json must not be nested so deeply") from None


def _check_characters(wanted: StructuredOutputsParams) -> None:
    for name in ("json", "regex", "choice", "grammar"):
        value = getattr(wanted, name)
        size = len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        if value is not None and size > MOST_CHARACTERS:
            raise ValueError(f"{name} must have at most {MOST_CHARACTERS:,} characters, got {size:,}")
