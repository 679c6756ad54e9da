"""Payoff: whether drafts make tokens faster, from the steps that were measured."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_low

READINGS, ENOUGH = 9, 3  # of a size of step: those that are kept, and how many make an estimate
FORGET = 0.9  # weight of all earlier steps in the acceptance, after each further step
RETRY_AFTER, MOST_WAIT = 32, 1024  # decisions after which the other way is tried: texts change, and so do times
TRY_DRAFTS = 3  # steps of a try with drafts: the first one is not measured


class StepTimes:
    """Seconds of a step by its number of tokens: the median of the last readings, so one late step does not count."""

    def __init__(self) -> None:
        self._readings: dict[int, deque[float]] = {}

    def add(self, num_tokens: int, seconds: float) -> None:
        self._readings.setdefault(size_of(num_tokens), deque(maxlen=READINGS)).append(seconds)

    def of(self, num_tokens: int) -> float | None:
        """Return the median of a size; between measured sizes, interpolate linearly. None beyond them."""
        known = {size: median_low(one) for size, one in self._readings.items() if len(one) >= ENOUGH}
        size = size_of(num_tokens)
        if size in known:
            return known[size]
        below = max((one for one in known if one < size), default=None)
        above = min((one for one in known if one > size), default=None)
        if below is None or above is None:
            return None
        return known[below] + (known[above] - known[below]) * (size - below) / (above - below)


def size_of(num_tokens: int) -> int:
    """Round num_tokens down to three binary digits, so that sizes next to each other share their readings."""
    shift = max(0, num_tokens.bit_length() - 3)
    return num_tokens >> shift << shift


@dataclass(slots=True)
class Trials:
    """Decides when to try the way that does not pay: after 32 decisions, then each time after twice as many.

    The wait doubles as long as it still does not pay, because a try with a draft model that has fallen behind takes as
    long as several steps.
    """

    pays: bool
    wait: int = RETRY_AFTER
    num_decided: int = 0

    def decide(self) -> bool:
        """Return `pays`, or for a few steps the opposite."""
        self.num_decided += 1
        if self.num_decided <= self.wait:
            return self.pays
        if self.num_decided >= self.wait + (1 if self.pays else TRY_DRAFTS):
            self.wait, self.num_decided = min(2 * self.wait, MOST_WAIT), 0
        return not self.pays


class Payoff:
    """Decides whether to draft: drafting pays if it raises tokens per second.

    With drafts a step takes longer and gives more tokens: those that it gives without them, and the accepted share of
    the drafts.
    """

    def __init__(self) -> None:
        self.times = StepTimes()
        self.drafted = self.accepted = 1.0  # before the first reading, all drafts are taken to hold
        self._trials: dict[int, Trials] = {}  # by the size of the batch
        self._drafts = self._resumes = False  # as decided last

    def observe(self, num_seqs: int, num_drafted: int, num_accepted: int, seconds: float) -> None:
        """Record a step that gave each of num_seqs sequences a token, and num_accepted of num_drafted drafts on top."""
        if num_drafted:
            self.drafted = FORGET * self.drafted + num_drafted
            self.accepted = FORGET * self.accepted + num_accepted
            if self._resumes:
                return  # a draft model has computed what it lacked: such a step does not come again
        self.times.add(num_seqs + num_drafted, seconds)

    def is_worth(self, num_seqs: int, num_drafts: int) -> bool:
        """Whether a step of num_seqs sequences should have num_drafts drafts.

        What has not been measured yet is tried: first the step without drafts.
        """
        before, self._drafts = self._drafts, self._decide(num_seqs, num_drafts)
        self._resumes = self._drafts and not before
        return self._drafts

    def _decide(self, num_seqs: int, num_drafts: int) -> bool:
        without, with_drafts = self.times.of(num_seqs), self.times.of(num_seqs + num_drafts)
        if without is None or with_drafts is None:
            return without is not None
        expected = num_seqs + num_drafts * self.accepted / self.drafted
        pays = expected * without > num_seqs * with_drafts
        trials = self._trials.get(size_of(num_seqs))
        if trials is None or trials.pays != pays:
            trials = self._trials[size_of(num_seqs)] = Trials(pays)
        return trials.decide()
