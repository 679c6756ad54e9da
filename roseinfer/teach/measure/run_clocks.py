"""Clocks of recorded runs: a model's and the wall's."""

from __future__ import annotations

from time import perf_counter, sleep


class ModelClock:
    """Stands still until time is spent, or waited for."""

    def __init__(self, time: float = 0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time

    def spend(self, duration: float) -> None:
        self.time += duration

    def wait_until(self, then: float) -> None:
        self.time = max(self.time, then)


class WallClock:
    """Time since it was made. per_second: how many of its units a second has."""

    def __init__(self, per_second: float = 1) -> None:
        self.per_second, self.began = per_second, perf_counter()

    def now(self) -> float:
        return self.at(perf_counter())

    def at(self, seconds: float) -> float:
        """What it shows when perf_counter gives `seconds`."""
        return self.per_second * (seconds - self.began)

    def spend(self, duration: float) -> None:
        sleep(duration / self.per_second)

    def wait_until(self, then: float) -> None:
        self.spend(max(0.0, then - self.now()))
