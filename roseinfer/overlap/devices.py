"""Devices: work is handed over, done in the order in which it came, and waited for when its result is needed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import nan
from time import perf_counter, sleep
from typing import Protocol, TypeVar

T = TypeVar("T")


class Launched(Future[T]):
    """Work that was handed over, and its times by perf_counter, in seconds.

    launched: when it was handed over. began, ended: when the device worked on it, NaN until it has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched = perf_counter()
        self.began = self.ended = nan

    def wait(self) -> None:
        """Wait until the work is done, well or not."""
        self.exception()

    def do(self, work: Callable[[], T], seconds: float = 0.0, free_at: float = 0.0) -> None:
        """Do the work in this thread. seconds: the least that it takes. free_at: when all work before it was done."""
        self.began = max(self.launched, free_at)
        try:
            result = work()
            self.ended = max(perf_counter(), self.began + seconds)
            if (left := self.ended - perf_counter()) > 0:
                sleep(left)
        except BaseException as error:
            self.ended = perf_counter()
            self.set_exception(error)
        else:
            self.set_result(result)


class Device(Protocol):
    def launch(self, work: Callable[[], T], num_tokens: int) -> Launched[T]:
        """Hand over the work of a step of num_tokens tokens; it begins when all that came before it is done."""


class InTurn:
    """Lets the calling thread do the work, and go on when it is done.

    A CPU computes in this way. Work is handed to a GPU in this way, too: it starts kernels and does not wait for them.
    Their clock is the stream's.
    """

    def launch(self, work: Callable[[], T], num_tokens: int) -> Launched[T]:
        launched: Launched[T] = Launched()
        launched.do(work)
        return launched


class OwnClock:
    """A device for machines that have none: a thread does the work while the host goes on.

    seconds: how long a step of so many tokens takes at least; None for as long as it takes. When its arithmetic takes
    less, the thread sleeps, and the cores are the host's: the tokens are real, and the timeline is that of a device
    with this speed. A step begins when it was launched and the one before is over, even if the thread comes to it
    later, as it does where the host keeps it from running: a device needs no host for that.
    """

    def __init__(self, seconds: Callable[[int], float] | None = None) -> None:
        self.seconds = seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")
        self._free_at = 0.0  # the thread's

    def launch(self, work: Callable[[], T], num_tokens: int) -> Launched[T]:
        launched: Launched[T] = Launched()
        seconds = self.seconds(num_tokens) if self.seconds else 0.0
        self._thread.submit(self._do, launched, work, seconds)
        return launched

    def _do(self, launched: Launched[T], work: Callable[[], T], seconds: float) -> None:
        launched.do(work, seconds, self._free_at)
        self._free_at = launched.ended
