"""VirtualLoop: an event loop whose clock jumps to the next thing that is due, so that seconds of waiting take none."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread
from typing import Any, TypeVar
from unittest.mock import patch

from ..exercises.wrong import Wrong

T = TypeVar("T")
START = 1000.0  # of the clock: a load does not begin at 0
MOST_LOOKS = 100_000  # at the clock, in one run


class JumpingSelector(selectors.SelectSelector):
    """A selector that never waits: where the loop would sleep, the clock moves on by as much."""

    now = START

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
        self.clock, self._num_looks = JumpingSelector(), 0
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

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a thread, because a notebook's own has a loop, and return its result."""
        really_sleep, thread = time.sleep, ThreadPoolExecutor(1, "virtual clock")

        def sleep(seconds: float) -> None:
            if not current_thread().name.startswith("virtual clock"):  # other threads sleep as before
                return really_sleep(seconds)
            raise Wrong("time.sleep holds up everything: `await asyncio.sleep(seconds)` lets others run meanwhile")

        try:
            with thread, patch("time.sleep", sleep):
                try:
                    return thread.submit(self.run_until_complete, work).result()
                finally:
                    thread.submit(self.run_until_complete, self._end()).result()
        finally:
            self.close()

    async def _end(self) -> None:
        """End the tasks that were begun and not waited for."""
        left = asyncio.all_tasks(self) - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
