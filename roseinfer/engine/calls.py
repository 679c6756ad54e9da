"""Calls of an engine: one at a time, and whole. Ctrl-C waits until no work is half done.

Python delivers signals to the main thread alone, so in any other thread Ctrl-C changes nothing here.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread, current_thread, main_thread
from types import FrameType

Handler = Callable[[int, FrameType | None], object]
Edge = Callable[[], None]
Stop = Callable[[], bool]


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


_is_deferred = False  # in the main thread


@contextmanager
def deferred_interrupts() -> Iterator[Edge]:
    """Note Ctrl-C inside this block, and deliver it at the end or when the caller calls the yielded function.

    The caller may call that function between two steps. In a nested block, the outer block delivers Ctrl-C.
    """
    global _is_deferred
    if current_thread() is not main_thread() or _is_deferred:
        yield lambda: None
        return
    pressed: list[int] = []
    before: Handler | None = None

    def deliver() -> None:
        while pressed and before:
            before(pressed.pop(), None)

    try:
        with handled_by(lambda number, frame: pressed.append(number)) as before:
            try:
                _is_deferred = True
                yield deliver
            finally:
                _is_deferred = False
    finally:
        deliver()


@contextmanager
def noted_interrupts() -> Iterator[Stop]:
    """Yield a function that says whether Ctrl-C was pressed; inside this block the first one raises nothing.

    A second Ctrl-C is raised at once, or at the end of a deferred_interrupts block.
    """
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    with handled_by(note):
        yield lambda: bool(pressed)


@contextmanager
def handled_by(handler: Handler) -> Iterator[Handler | None]:
    """Send SIGINT to `handler` inside this block, and yield the handler that was there before.

    In another thread than the main one, and where no Python function handles the signal (it is ignored, or ends the
    process), yield None and change nothing.
    """
    before = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if not callable(before):
        yield None
        return
    try:
        signal.signal(signal.SIGINT, handler)
        yield before
    finally:
        signal.signal(signal.SIGINT, before)
