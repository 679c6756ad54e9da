"""Stop strings: a text that ends before one of them, and shows nothing that may yet become one."""

from __future__ import annotations

from collections.abc import Iterable

from .detokenizer import Detokenizer, Text


class StoppedDetokenizer(Detokenizer):
    """A Detokenizer whose text is cut before the stop string that is complete first.

    keeps_stop: cut it after the stop string.
    """

    def __init__(self, text: Text, stop: tuple[str, ...], keeps_stop: bool) -> None:
        super().__init__(text)
        self._stop, self._keeps_stop = stop, keeps_stop
        self._first = {text[0] for text in stop}
        self._held = ""  # may be the beginning of a stop string

    def add(self, token_id: int, may_stop: bool = True) -> str | None:
        new = self._text.feed(token_id)
        if self._held or not self._first.isdisjoint(new):
            return self._search(new, may_stop)
        self._shown.append(new)  # most tokens: no stop string begins in them
        return None

    def finish(self, may_stop: bool = True) -> str | None:
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
