"""Checks all promises on one stage class, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from roseinfer.stage import Stage

from .promises.all_promises import PROMISES, Promise, promises_of
from .time_limit import TookTooLong, time_limit

SECONDS = 60.0  # for one promise; a dense stage takes a few at most


@dataclass(frozen=True)
class Outcome:
    """One promise's outcome. error: what the check raised, if broken. reason: why it was not tried, or was stopped."""

    promise: Promise
    verdict: Literal["held", "broken", "not tried"]
    error: Exception | None = None
    reason: str = ""


def check_promises(
    stage_class: type[Stage],
    *,
    promises: Iterable[Promise] | None = None,
    quick: bool = False,
    device: str = "cpu",
    seconds: float = SECONDS,
) -> Iterator[Outcome]:
    """Yield each promise's outcome as soon as it is known. The stage's errors are outcomes; an interrupt is raised.

    promises: None for all that fit the stage. quick: leave out the slow ones. seconds: the limit for each promise. If a
    stage takes longer or cannot be made, the rest are not tried. torch's global random state is left as it was.
    """
    hopeless, any_broken = "", False
    for promise in promises_of(stage_class) if promises is None else promises:
        if reason := hopeless or _why_left_out(promise, quick, any_broken):
            yield Outcome(promise, "not tried", reason=reason)
            continue
        outcome = _check(promise, stage_class, device, seconds)
        any_broken |= outcome.verdict == "broken"
        if outcome.reason:
            hopeless = "the one before it never ended"
        elif outcome.verdict == "broken" and promise is PROMISES[0]:
            hopeless = "there is no stage to try"
        yield outcome


def _why_left_out(promise: Promise, quick: bool, any_broken: bool) -> str:
    if quick and promise.slow:
        return "left out by quick=True"
    return "tried when all others are held" if any_broken and promise.last else ""


def _check(promise: Promise, stage_class: type[Stage], device: str, seconds: float) -> Outcome:
    try:
        with torch.random.fork_rng(devices=[]), time_limit(seconds):
            promise.check(stage_class, device)
    except TookTooLong:
        return Outcome(promise, "broken", reason=f"not done after {seconds:g} s, and stopped: does a loop never end?")
    except Exception as error:
        return Outcome(promise, "broken", error)
    return Outcome(promise, "held")
