"""VirtualLoop: an event loop whose clock jumps to the next thing that is due, so that seconds of waiting take none."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from course.contract.time_limit import TookTooLong, time_limit

from ..exercises.wrong import Wrong

START = 1000.0  # of the clock: a load does not begin at 0
LONGEST = 2.0  # seconds that a run may really take; it takes milliseconds
HOLDS_UP = (
    "time.sleep, and a loop that looks at the clock, hold up everything: "
    "`await asyncio.sleep(seconds)` lets others run meanwhile"
)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock only sleeping moves."""

    def __init__(self) -> None:
        self.clock = JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in a thread, because a notebook's own has a loop, and return its result."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._run, work).result()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            with time_limit(LONGEST):
                return self.run_until_complete(work)
        except TookTooLong:
            raise Wrong(HOLDS_UP) from None
        finally:
            if left := asyncio.all_tasks(self):  # begun, and not waited for
                for task in left:
                    task.cancel()
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.close()


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
