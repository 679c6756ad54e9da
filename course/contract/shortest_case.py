"""Finds the fewest calls of a random case that go wrong; both searches use it.

A learner waits for this, and a run of a case takes a tenth of a second. hypothesis was tried in its place: on one wrong
stage it ran more than ten times as many schedules, and kept calls that do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar


@dataclass(frozen=True)
class Case:
    """Calls on a fresh stage."""

    calls: tuple[Any, ...] = field(kw_only=True)

    def shorter(self: AnyCase) -> Iterator[AnyCase]:
        """Yield the case without half of its calls, without a quarter, and so on; at last without a single one."""
        size = len(self.calls)
        while size := size // 2:
            for start in range(0, len(self.calls), size):
                yield replace(self, calls=self.calls[:start] + self.calls[start + size :])


AnyCase = TypeVar("AnyCase", bound=Case)
WhatBreaks = Callable[[AnyCase], AssertionError | None]


def require_none_breaks(cases: Iterable[AnyCase], what_breaks: WhatBreaks[AnyCase]) -> None:
    """Require that no case breaks. Raises what breaks in the first that does, with no more calls than it needs.

    what_breaks: plays a case, and returns its first error as `told` writes it.
    """
    for case in cases:
        if broken := what_breaks(case):
            raise shortest(case, broken, what_breaks)


def shortest(case: AnyCase, broken: AssertionError, what_breaks: WhatBreaks[AnyCase]) -> AssertionError:
    """Leave calls out, step by step, for as long as the case still breaks; return what breaks in the end."""
    for other in case.shorter():
        if found := what_breaks(other):
            return shortest(other, found, what_breaks)
    return broken


def told(calls: str, error: Exception) -> AssertionError:
    """Write an error with the calls that led to it, for the stage's author."""
    what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    broken = AssertionError(f"{calls}: {what}")
    broken.__cause__ = error
    return broken
