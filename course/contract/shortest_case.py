"""Finds the simplest form of a random case that goes wrong, and its message; both searches use it.

A learner waits for this, and a run of a case takes a tenth of a second. hypothesis was tried in its place: on one wrong
stage it ran 1,413 schedules where this runs 91, and kept calls that do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar


@dataclass(frozen=True)
class Case:
    """Calls on a fresh stage. str(case) is the text that the stage's author reads."""

    calls: tuple[Any, ...] = field(kw_only=True)  # each has simpler(), which yields the call with one thing less

    def simpler(self: AnyCase) -> Iterator[AnyCase]:
        """Yield the case without half of its calls, without a quarter, and so on; then with one call made simpler."""
        size = len(self.calls)
        while size := size // 2:
            for start in range(0, len(self.calls), size):
                yield replace(self, calls=self.calls[:start] + self.calls[start + size :])
        for i, call in enumerate(self.calls):
            for other in call.simpler():
                yield replace(self, calls=(*self.calls[:i], other, *self.calls[i + 1 :]))

    def renamed(self: AnyCase) -> AnyCase:
        """Return the case as it is told."""
        return self


AnyCase = TypeVar("AnyCase", bound=Case)


def require_none_breaks(
    cases: Iterable[AnyCase],
    what_breaks: Callable[[AnyCase], Exception | None],
    tell: Callable[[AnyCase, str], str],
) -> None:
    """Require that no case breaks. Raises AssertionError about the first that does, made as simple as it can be.

    what_breaks: returns the first error of a case. tell: makes the message from the case and the error in words.
    """
    for case in cases:
        if what_breaks(case):
            case = shortest(case, what_breaks).renamed()
            error = what_breaks(case)
            what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(tell(case, what)) from error


def shortest(case: AnyCase, what_breaks: Callable[[AnyCase], Exception | None]) -> AnyCase:
    """Make the case simpler, step by step, for as long as it still breaks."""
    while simpler := next((other for other in case.simpler() if what_breaks(other)), None):
        case = simpler
    return case
