"""Lane: work for the event loop that would hold it up, on threads beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
TURN_SECONDS = 30  # that work waits for its turn


class LaneFull(Exception):
    """Raised for work whose turn did not come in time."""


class Lane:
    """Threads that take on one kind of work, first come, first served. Slow work delays its own kind alone.

    name: of the threads. They are daemons, unlike those of ThreadPoolExecutor, so none keeps the process from ending.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._running: set[Future[Any]] = set()
        self._num_threads = num_threads
        for _ in range(num_threads):
            Thread(target=self._work, name=f"roseinfer {name}", daemon=True).start()

    async def run(self, call: Callable[[], T]) -> T:
        """Return what call() returns, and raise what it raises. Work of a cancelled caller is not begun.

        Raises LaneFull for work whose turn does not come within TURN_SECONDS.
        """
        result: Future[T] = Future()
        self._jobs.put((result, call))
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
        for _ in range(self._num_threads):
            self._jobs.put(None)

    @property
    def is_at_work(self) -> bool:
        return bool(self._running)

    def _work(self) -> None:
        while job := self._jobs.get():
            result, call = job
            self._running.add(result)
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(call())
                except BaseException as error:
                    result.set_exception(error)
            self._running.discard(result)
            del job, result, call  # a thread that waits keeps no request
