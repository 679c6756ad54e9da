"""Gaps in a trace, and what the host was doing meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from roseinfer.profiling.traces.chrome import Slice

BETWEEN = "between spans"


class Gap(NamedTuple):
    """A time with nothing to see, in ns. during: the innermost host event that covers more than half of it."""

    ts: int
    end: int
    during: Slice | None

    @property
    def dur(self) -> int:
        return self.end - self.ts

    @property
    def name(self) -> str:
        return self.during.name if self.during else BETWEEN


def find_gaps(busy: Iterable[Slice], host: Sequence[Slice], start: int, end: int) -> list[Gap]:
    """Find the parts of start..end that no slice of `busy` covers, in time order.

    host: events of one thread, in time order, enclosing ones first; each gap is named after one of them.
    """
    gaps, upcoming = [], 0
    open_events: list[Slice] = []
    for gap_start, gap_end in _uncovered(busy, start, end):
        middle = (gap_start + gap_end) // 2  # whatever covers more than half of the gap covers its middle
        while upcoming < len(host) and host[upcoming].ts <= middle:
            open_events.append(host[upcoming])
            upcoming += 1
        open_events = [event for event in open_events if event.end > middle]
        half = (gap_end - gap_start) / 2
        inside = [e for e in open_events if min(e.end, gap_end) - max(e.ts, gap_start) > half]
        gaps.append(Gap(gap_start, gap_end, inside[-1] if inside else None))
    return gaps


def _uncovered(busy: Iterable[Slice], start: int, end: int) -> Iterable[tuple[int, int]]:
    covered = start
    for event in sorted(busy):
        if event.ts >= end:
            break
        if event.ts > covered:
            yield covered, event.ts
        covered = max(covered, event.end)
    if covered < end:
        yield covered, end
