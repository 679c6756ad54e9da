"""VirtualLoop: an event loop whose clock jumps to the next thing that is due, so that seconds of waiting take none."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any, TypeVar
from unittest.mock import patch

from ..exercises.wrong import Wrong

T = TypeVar("T")
START = 1000.0  # of the clock: a load does not begin at 0
MOST_LOOKS = 100_000  # at the clock, in one run


class JumpingSelector(selectors.SelectSelector):
    """A selector that never waits: where the loop would sleep, the clock moves on by as much."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Wrong("nothing is left to wait for, and open_loop has not returned")
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock only sleeping moves: a program that looks at the clock without end gets Wrong."""

    def __init__(self) -> None:
        self.clock = JumpingSelector()
        self._num_looks = 0
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    def now(self) -> float:
        """Return the seconds on this clock to the program that runs on this loop."""
        self._num_looks += 1
        if self._num_looks > MOST_LOOKS:
            raise Wrong("the clock is asked again and again: `await asyncio.sleep(seconds)` lets others run meanwhile")
        return self.clock.now

    def work(self, seconds: float) -> None:
        """Hold up everything, as a program does that computes for so long."""
        self.clock.now += seconds


def run_virtually(make: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new VirtualLoop, in a thread because a notebook's own has a loop, and return its result."""

    def run() -> T:
        own, loop = get_ident(), VirtualLoop()

        def sleep(seconds: float) -> None:
            if get_ident() != own:  # other threads sleep as before
                return really_sleep(seconds)
            raise Wrong(
                "time.sleep holds up everything, the other requests too: `await asyncio.sleep(seconds)` does not"
            )

        try:
            with patch("time.sleep", sleep):
                value = loop.run_until_complete(make(loop))
            for task in asyncio.all_tasks(loop):
                task.cancel()
            return value
        finally:
            loop.close()

    really_sleep = time.sleep
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
