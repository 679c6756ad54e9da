"""Lane: work for the event loop that would hold it up, on threads beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
TURN_SECONDS = 30  # that work waits for its turn


class LaneFull(Exception):
    """Raised for work whose turn did not come in time."""


class Lane:
    """Threads that take on one kind of work, first come, first served. Slow work delays its own kind alone.

    name: of the threads.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, f"roseinfer {name}")
        self._unfinished: set[Future[Any]] = set()

    async def run(self, call: Callable[[], T]) -> T:
        """Return what call() returns, and raise what it raises. Work of a cancelled caller is not begun.

        Raises LaneFull for work whose turn does not come within TURN_SECONDS.
        """
        result = self._threads.submit(call)
        self._unfinished.add(result)
        result.add_done_callback(self._unfinished.discard)
        ended = asyncio.wrap_future(result)
        ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # asyncio logs an unread error
        try:
            await asyncio.wait({ended}, timeout=TURN_SECONDS)
            if not (ended.done() or result.running()):
                raise LaneFull
            return await ended
        finally:
            result.cancel()  # which changes nothing once it has begun

    def close(self) -> None:
        """Begin no further work."""
        self._threads.shutdown(wait=False)

    @property
    def is_at_work(self) -> bool:
        return any(result.running() for result in self._unfinished.copy())
