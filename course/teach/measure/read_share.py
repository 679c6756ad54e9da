"""read_share: a share of a decode step that the reader reads off the timeline of their own trace."""

from __future__ import annotations

import html
from dataclasses import dataclass
from numbers import Real

from roseinfer.display.view import View, card
from roseinfer.profiling import Trace

WITHIN = 5  # percentage points: a bar's tooltip rounds, and a reader divides in the head
TOTAL = "total"  # the whole step


@dataclass(frozen=True, repr=False)
class Reading(View):
    """Share that a reader read off a timeline. percent: what the trace has. answer: what was read, None for none yet.

    text/plain has neither: both differ from run to run.
    """

    span: str
    percent: float
    answer: float | None

    def __repr__(self) -> str:
        answer = ": none yet" if self.answer is None else ""
        return f"percent of the first step in {self.span}, read off the timeline{answer}"

    def to_html(self) -> str:
        name = f"<code>{html.escape(self.span)}</code>"
        if self.answer is None:
            told = "Point at its bar in the row of spans, and at that of <code>total</code>. Write it in place of"
            return card(f"<p><b>How many percent of the first step are in {name}?</b> {told} <code>None</code>.</p>")
        if abs(self.answer - self.percent) <= WITHIN and not self._is_fraction:
            return card(f"<p>{name}: you read {self.answer:g}, and the trace has {self.percent:.0f}%.</p>", "good")
        wrong = f"you read {self.answer:g}, which is not within {WITHIN} of the trace's number."
        return card(f"<p>{name}: {wrong} {self._reason()}</p>", "not yet")

    @property
    def _is_fraction(self) -> bool:
        assert self.answer is not None, "only for an answer"
        return 0 < self.answer < 1 < self.percent and abs(100 * self.answer - self.percent) <= WITHIN

    def _reason(self) -> str:
        """Say what a wrong answer looks like: a fraction, the share of all the rest, or neither."""
        assert self.answer is not None, "only for an answer"
        if self._is_fraction:
            return "It looks like a fraction: percent are 100 times as much."
        if abs(100 - self.answer - self.percent) <= WITHIN:
            return "It looks like the share of all the rest."
        return "Divide the length of its bar by that of <code>total</code>."


def read_share(trace: Trace, span: str, answer: float | None = None) -> Reading:
    """Check how many percent of the trace's first decode step `span` takes, as the reader read it off teach.timeline.

    span: a label without its prefix, such as "forward". answer: within 5 percentage points it is right; None for none
    yet. Raises ValueError for a trace without a decode step, a label that the step does not have, and an answer that is
    not a number from 0 to 100.
    """
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, Real) or not 0 <= answer <= 100):
        raise ValueError(f"answer must be a number of percent, from 0 to 100, got {answer!r}")
    lengths = _first_step(trace)
    if span not in lengths:
        raise ValueError(f"span must be one of {', '.join(lengths)}, got {span!r}")
    return Reading(span, 100 * lengths[span] / lengths[TOTAL], None if answer is None else float(answer))


def _first_step(trace: Trace) -> dict[str, float]:
    """Return the length in ns of the first decode step on the host, and of the first span of each label in it."""
    query = "SELECT name, ts, dur FROM slice WHERE cat = 'user_annotation' AND name LIKE 'roseinfer.%' ORDER BY ts"
    spans = [(name.rpartition(".")[2], start, length) for name, start, length in trace.rows(query)[1]]
    step = next(((start, length) for name, start, length in spans if name == TOTAL and length > 0), None)
    if step is None:
        raise ValueError("trace must have a decode step, a span called roseinfer.decode_step_sessions.total")
    lengths = {TOTAL: step[1]}
    for name, start, length in spans:
        if step[0] <= start < step[0] + step[1]:
            lengths.setdefault(name, length)
    return lengths
