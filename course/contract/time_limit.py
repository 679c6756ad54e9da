"""A time limit for Python code that may never end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Ends code at its time limit. It is no Exception, so that `except Exception` in that code does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop the body by TookTooLong at its next Python instruction after `seconds`, on any platform and in any thread.

    A single call into C that does not return (a lock, a sleep) is not stopped.
    """
    thread, lock, over = threading.get_ident(), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not over:
                _raise_in(thread, TookTooLong)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error in another thread, which CPython allows only through its C API."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
