"""in_deep_stack: calls llguidance where its recursion has room. Without torch, for the process of grammar_worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

# llguidance follows rules and references by recursion, in up to 700 bytes of the stack for each character that spells
# them. An overflow would end the process, so the stack has room for the longest text that is taken.
STACK_BYTES = 256 * 2**20  # of addresses: memory is used as far as the recursion goes

T = TypeVar("T")
_stack_size = threading.Lock()


def in_deep_stack(call: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises, in a thread with STACK_BYTES of stack."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    with _stack_size:  # a setting of the process, for threads that begin now
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=work, name="roseinfer grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
    return done.result()
