"""read_share: a share of a decode step that the reader reads off the timeline of their own trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

from roseinfer.display.view import View, card, inline
from roseinfer.profiling import Trace

WITHIN = 5  # percentage points: a bar's tooltip rounds, and a reader divides in the head
TOTAL = "total"  # the whole step


@dataclass(frozen=True, repr=False)
class Reading(View):
    """percent: the share that the trace has. answer: the one that was read, None for none yet. text/plain has neither:
    both differ from run to run."""

    span: str
    percent: float
    answer: float | None

    def __repr__(self) -> str:
        answer = ": none yet" if self.answer is None else ""
        return f"percent of the first step in {self.span}, read off the timeline{answer}"

    def to_html(self) -> str:
        if self.answer is None:
            told = "Point at its bar and at that of `total`, and write your number in place of `None`."
            return card(f"<p>{inline(f'**Percent of the first step in `{self.span}`.** {told}')}</p>")
        is_right = abs(self.answer - self.percent) <= WITHIN
        shown = f"{self.percent:.0f}% of the step"
        if is_right:
            told = f"You read {self.answer:g}, and the trace has {shown}."
        else:
            told = f"You read {self.answer:g}, expected a number within {WITHIN} of the trace's.{self._reason()}"
        return card(f"<p>{inline(f'**`{self.span}`.** {told}')}</p>", "good" if is_right else "not yet")

    def _reason(self) -> str:
        """What a wrong answer looks like, if it looks like something."""
        assert self.answer is not None, "only for an answer"
        if 0 < self.answer <= 1 and abs(100 * self.answer - self.percent) <= WITHIN:
            return " It looks like a fraction: percent are 100 times as much."
        if abs(100 - self.answer - self.percent) <= WITHIN:
            return " It looks like the share of all the rest."
        return " Divide the length of its bar by the length of `total`."


def read_share(trace: Trace, span: str, answer: float | None = None) -> Reading:
    """Check how many percent of the trace's first decode step `span` takes, as the reader read it off teach.timeline.

    span: a label without its prefix, such as "forward". answer: within 5 percentage points it is right; None for none
    yet. Raises ValueError for a label that the step does not have, and for an answer that is not a finite number.
    """
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, (int, float))):
        raise ValueError(f"answer must be a number of percent, got {answer!r}")
    if answer is not None and not math.isfinite(answer):
        raise ValueError(f"answer must be a finite number of percent, got {answer!r}")
    return Reading(span, 100 * _length(trace, span) / _length(trace, TOTAL), answer)


def _length(trace: Trace, span: str) -> float:
    """Of the first span with that label on the host, in ns."""
    query = "SELECT name, dur FROM slice WHERE cat = 'user_annotation' AND name LIKE 'roseinfer.%' ORDER BY ts"
    lengths: dict[str, float] = {}
    for name, length in trace.rows(query)[1]:
        lengths.setdefault(name.rpartition(".")[2], length)
    if span not in lengths:
        raise ValueError(f"span must be one of {', '.join(lengths)}, got {span!r}")
    return lengths[span]
