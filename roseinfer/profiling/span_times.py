"""SpanTimes: how long the spans of a part of a program took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from .clock import Clock


@dataclass(frozen=True, slots=True)
class TimedSpan:
    name: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class SpanTimes:
    """A listener that reads a clock as spans begin and end. keep(name, name of the span around it or None): which ones.

    kept: those that have ended, in the order of their ends.
    """

    def __init__(self, keep: Callable[[str, str | None], bool], clock: Clock = perf_counter) -> None:
        self.kept: list[TimedSpan] = []
        self._keep = keep
        self._clock = clock
        self._open: list[tuple[str, float | None]] = []  # None: not kept

    def enter(self, name: str) -> None:
        around = self._open[-1][0] if self._open else None
        self._open.append((name, self._clock() if self._keep(name, around) else None))

    def exit(self, name: str) -> None:
        _, began = self._open.pop()
        if began is not None:
            self.kept.append(TimedSpan(name, began, self._clock()))

    def take(self) -> list[TimedSpan]:
        """Return what was kept since the last call."""
        kept, self.kept = self.kept, []
        return kept
