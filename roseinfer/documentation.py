"""Python's own documentation: the bundled model was trained on it, benchmarks and contests cut prompts from it.

The text is that of Python 3.11 (`pydoc_data.topics`, under the PSF License Version 2). It is kept in a file because
each version of Python documents itself in other words, and prompts must be the same on every machine.
"""

from __future__ import annotations

from functools import cache

from .paths import TOPICS


@cache
def topics() -> tuple[str, ...]:
    """Return the articles of the language reference, in the order of their names."""
    return tuple(TOPICS.read_text(encoding="utf-8").split("\n\f\n"))
