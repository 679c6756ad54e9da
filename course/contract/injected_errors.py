"""Errors that come from outside the stage, at any tensor operation.

Nothing in the stage is replaced: torch itself raises, as it does when memory runs out or Ctrl-C arrives.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

from .broken_promises import an

SEAM = ("prefill", "write_prompt", "decode", "build", "append", "free")
Result = TypeVar("Result")


class OutOfMemory(RuntimeError):
    """The error of a full device. It is a RuntimeError, like the one that torch raises."""


class ErrorAt(TorchDispatchMode):
    """Raises an error in place of operation `at` of the body; at=None raises none.

    raised: that error; None if the body never came to it. seen: number of operations so far.

    For torch the beginning and end of a profiler span are operations too, though not of the stage: nothing fails there.
    """

    def __init__(self, error: type[BaseException], at: int | None) -> None:
        super().__init__()
        self.error = error
        self.raised: BaseException | None = None
        self.at, self.seen = at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.namespace == "profiler":
            return func(*args, **(kwargs or {}))
        self.seen += 1
        if self.seen - 1 == self.at:
            self.raised = self.error(f"injected in {func.name()}")
            raise self.raised
        return func(*args, **(kwargs or {}))


def num_operations(call: Callable[[], object]) -> int:
    with ErrorAt(OutOfMemory, at=None) as counter:
        call()
    return counter.seen


def attempt(call: Callable[[], Result], injection: ErrorAt) -> Result | None:
    """Make the call with the injected error. Returns None if that error reaches the caller, else the call's result.

    There is a result if the stage handles the error by doing the work in another way. Raises AssertionError if the
    caller gets another error instead, or if a KeyboardInterrupt is swallowed.
    """
    try:
        with injection:
            result = call()
    except injection.error:
        return None
    except Exception as other:
        instead = f"the caller gets {an(type(other).__name__)} instead"
        raise AssertionError(f"{where_raised(injection)}: {instead}") from other
    interrupted = isinstance(injection.raised, KeyboardInterrupt)
    assert not interrupted, f"{where_raised(injection)}: the error is swallowed, the caller never hears of it"
    return result


def where_raised(injection: ErrorAt) -> str:
    """Name the seam's method in which the error was raised, and the call: "RuntimeError in append, during decode"."""
    kind = "KeyboardInterrupt" if injection.error is KeyboardInterrupt else "RuntimeError"
    frames = traceback.walk_tb(injection.raised.__traceback__ if injection.raised else None)
    methods = [name for frame, _ in frames if (name := frame.f_code.co_name) in SEAM]
    if not methods:
        return kind
    return f"{kind} in {methods[-1]}" + (f", during {methods[0]}" if methods[-1] != methods[0] else "")
