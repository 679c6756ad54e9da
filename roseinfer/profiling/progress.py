"""Progress: how far a measurement is, and how long what is left of it will take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter

from .clock import Clock


@dataclass(frozen=True)
class RunProgress:
    """Progress of a measurement. repeat: -1 while nothing is timed.

    tokens and seconds: decoding of this run so far, every step at the median of those so far. seconds_left: of the
    whole measurement, an estimate; None while no run is over.
    """

    phase: str
    name: str
    repeat: int = -1
    tokens: int = 0
    seconds: float = 0.0
    finished: bool = False
    runs_done: int = 0
    runs_total: int = 0
    seconds_left: float | None = None


OnProgress = Callable[[RunProgress], None]


class Progress:
    """Reports each run as it begins.

    work: how much is planned under each name, in units of the caller's; warm-ups count. A unit is expected to take as
    long as those of the last run of its name, and before the first one as long as the mean of the other names'.
    at_least: seconds that all of it takes however fast it runs, such as the time that requests need to come.
    """

    def __init__(
        self,
        report: OnProgress | None,
        work: Mapping[str, float],
        runs_total: int,
        *,
        at_least: float = 0.0,
        clock: Clock = perf_counter,
    ) -> None:
        self._report = report or (lambda progress: None)
        self._left = dict(work)
        self._unit: dict[str, float] = {}  # seconds
        self._running: tuple[str, float] | None = None
        self._clock, self._began, self._last = clock, clock(), clock()
        self._at_least = at_least
        self._runs_done, self._runs_total = -1, runs_total

    def begin(self, phase: str, name: str, work: float = 1.0, repeat: int = -1) -> RunProgress:
        """Report that a run of so much work begins, and that the one before it is over."""
        now = self._clock()
        if self._running:
            last, units = self._running
            self._unit[last] = (now - self._last) / units
            self._left[last] -= units
        self._running, self._last = (name, work), now
        self._runs_done += 1
        here = RunProgress(
            phase,
            name,
            repeat,
            runs_done=self._runs_done,
            runs_total=self._runs_total,
            seconds_left=self._seconds_left(),
        )
        self._report(here)
        return here

    def _seconds_left(self) -> float | None:
        if not self._unit:
            return None
        usual = fmean(self._unit.values())
        expected = sum(units * self._unit.get(name, usual) for name, units in self._left.items())
        return max(expected, self._at_least - (self._clock() - self._began))
