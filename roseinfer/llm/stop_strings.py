"""Stop strings: where one of them begins in a text, and where one may begin that is not complete yet."""

from __future__ import annotations

from collections.abc import Iterable


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
