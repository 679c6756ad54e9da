"""OneCaller: lets one call at a time into an object, and delays Ctrl-C until that call is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Thread, current_thread

from .interrupts import Edge, deferred_interrupts


class InUse(RuntimeError):
    """Raised for a call that came while another was under way. It has changed nothing, and the other one goes on."""


class OneCaller:
    """Lets one call at a time into an object. name: how the error names the object."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._thread: Thread | None = None  # of the call that is under way

    @contextmanager
    def call(self) -> Iterator[Edge]:
        """Enter a call. Ctrl-C waits for its end, and for its edges: see deferred_interrupts.

        Raises InUse, a RuntimeError, while another call is under way: in another thread, or further up in this one.
        """
        with deferred_interrupts() as edge:
            if not self._lock.acquire(blocking=False):
                raise InUse(self._why())
            try:
                self._thread = current_thread()
                yield edge
            finally:
                self._thread = None
                self._lock.release()

    def _why(self) -> str:
        name, thread = self.name, self._thread
        if thread is current_thread():
            return (
                f"{name} is in the middle of a call in this thread: a scheduling policy, a finalizer or a signal "
                "handler that runs inside it cannot make another one. Make it when the first one has returned"
            )
        who = f" ({thread.name!r})" if thread else ""
        return (
            f"{name} is in use by another thread{who}, whose call goes on: one thread at a time may call it. Make all "
            f"calls in one thread, put a lock around them, or give each thread its own {name}"
        )
