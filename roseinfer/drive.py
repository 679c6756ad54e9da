"""drive: step a queue until nothing is left to do, with requests that all come at once or by a clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Stepped = TypeVar("Stepped", covariant=True)
LOOK_S = 0.05  # a sleep is cut into pieces of this length, to ask between them whether to stop


class Queue(Protocol[Stepped]):
    """What `drive` steps: an Engine, or a stage from 14 on."""

    @property
    def has_work(self) -> bool: ...

    def step(self) -> Stepped: ...


class RunClock(Protocol):
    """Time since a run began, in the unit that its arrivals have."""

    def now(self) -> float: ...

    def wait_until(self, then: float) -> None:
        """Wait because there is nothing to do. It may return early."""


class WallClock:
    """Counts seconds since it was made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep):
        self.clock, self.sleep = clock, sleep
        self.began = clock()

    def now(self) -> float:
        return self.clock() - self.began

    def wait_until(self, then: float) -> None:
        """Wait until `then`, but at most LOOK_S seconds."""
        self.sleep(min(max(0.0, then - self.now()), LOOK_S))


def drive(queue: Any, seqs: Iterable[Any] = ()) -> Iterator[Any]:
    """Add all of `seqs`, and yield what each step returns until there is no more work."""
    for seq in seqs:
        queue.add(seq)
    while queue.has_work:
        yield queue.step()


def drive_by_clock(
    queue: Queue[Stepped],
    arrivals: Iterable[tuple[float, T]],
    clock: RunClock,
    add: Callable[[T, float], object],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Stepped]:
    """Yield what each step returns, and add each of `arrivals` once its time has come.

    arrivals: (when, request), in order of time. A request that comes during a step is added after it. add: called with
    the request, and when it was due. stop: asked before each step; once it says yes, no more follow.
    """
    coming = deque(arrivals)
    while (coming or queue.has_work) and not stop():
        now = clock.now()
        while coming and coming[0][0] <= now:
            when, request = coming.popleft()
            add(request, when)
        if queue.has_work:
            yield queue.step()
        elif coming:
            clock.wait_until(coming[0][0])
