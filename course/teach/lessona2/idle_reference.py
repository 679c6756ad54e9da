"""Gaps in a device's work, as exercise a2.4 asks for them: the right ones, mistakes, and traces that show them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from roseinfer.profiling.traces.trace import DEVICE_WORK

from ..exercises.drawn import Case
from .events import COPY, DEVICE_SPAN, FILL, FORWARD, KERNEL, OP, Event, Events, in_order, kernel, op
from .rows import Rows
from .self_time_reference import US_PER_MS


def is_work(event: Event) -> bool:
    return event.cat in DEVICE_WORK


def gaps_between(work: Events) -> list[float]:
    """List the times between pieces of work in which none of them runs, zeros included."""
    found = []
    for number, event in enumerate(work[1:], start=1):
        found.append(max(0, event.ts - max(other.end for other in work[:number])))
    return found


def idle(
    events: Events,
    keep: Callable[[Event], bool] = is_work,
    gaps_of: Callable[[Events], list[float]] = gaps_between,
    unit: float = 1,
    with_zeros: bool = False,
) -> Rows:
    gaps = [gap for gap in gaps_of([event for event in events if keep(event)]) if gap or with_zeros]
    return Rows(("gaps", "idle_ms"), [(len(gaps), sum(gaps) / US_PER_MS * unit)])


def _since_the_last(work: Events) -> list[float]:
    return [max(0, after.ts - before.end) for before, after in zip(work, work[1:], strict=False)]


def _by_stream(work: Events) -> list[float]:
    streams = {event.tid: [other for other in work if other.tid == event.tid] for event in work}
    return [gap for own in streams.values() for gap in gaps_between(own)]


def _or_touching(work: Events) -> list[float]:
    until = [max(other.end for other in work[:number]) for number in range(1, len(work))]
    return [event.ts - end for event, end in zip(work[1:], until, strict=True) if event.ts >= end]


def _signed(work: Events) -> list[float]:
    return [after.ts - before.end for before, after in zip(work, work[1:], strict=False)]


def _from_zero(work: Events) -> list[float]:
    return [*([work[0].ts] if work else []), *gaps_between(work)]


def _as_if_in_turn(events: Events) -> Rows:
    """Subtract all durations from the whole time, as if no two pieces ran at the same time."""
    work = [event for event in events if is_work(event)]
    whole = max((event.end for event in work), default=0) - min((event.ts for event in work), default=0)
    gaps = idle(events).rows[0][0]
    return Rows(("gaps", "idle_ms"), [(gaps, (whole - sum(event.dur for event in work)) / US_PER_MS)])


def _pieces_less_one(events: Events) -> Rows:
    """Count gaps as if there were always a piece of work: -1 without any."""
    return idle(events) if any(map(is_work, events)) else Rows(("gaps", "idle_ms"), [(-1, None)])


IDLE_MISTAKES: dict[str, Callable[[Events], Rows]] = {
    "the piece before it may have ended while a longer one still runs: take the latest end of all before": partial(
        idle, gaps_of=_since_the_last
    ),
    "work on two streams overlaps, which gives negative times: those are not gaps": partial(idle, gaps_of=_signed),
    "while one stream waits, another one may work: look at all streams together": partial(idle, gaps_of=_by_stream),
    "two pieces of work may run at the same time, and their durations must not be added": _as_if_in_turn,
    "a piece of work that starts when the one before ends leaves no gap": partial(
        idle, gaps_of=_or_touching, with_zeros=True
    ),
    "memory copies and fills are work of the device, too": partial(idle, keep=lambda event: event.cat == KERNEL),
    "a memory copy (`gpu_memcpy`) is work of the device, too": partial(
        idle, keep=lambda event: event.cat in (KERNEL, FILL)
    ),
    "a fill (`gpu_memset`) is work of the device, too": partial(idle, keep=lambda event: event.cat in (KERNEL, COPY)),
    "a span of the device (`gpu_user_annotation`) is no work, it only has a name for it": partial(
        idle, keep=lambda event: is_work(event) or event.cat == DEVICE_SPAN
    ),
    "ops of the host are not the device's work": partial(idle, keep=lambda event: is_work(event) or event.cat == OP),
    "every event counts as work, and only the device's should": partial(idle, keep=lambda event: True),
    "the time before the first piece of work is not a gap": partial(idle, gaps_of=_from_zero),
    "without work there is no gap, and both are 0": _pieces_less_one,
    "`ts` and `dur` are in nanoseconds: divide by 1e6": partial(idle, unit=1e6),
    "those are microseconds, and a millisecond has 1,000 of them": partial(idle, unit=1e3),
}


def draw_device(rng: Random) -> Case:
    events: Events = []
    for tid in range(7, 7 + rng.randint(1, 3)):
        now = rng.randint(0, 6)
        for _ in range(rng.randint(1, 4)):
            dur = rng.choice((1, 2, 3, rng.randint(4, 15)))
            events.append(kernel(now, now + dur, tid, rng.choice((KERNEL, KERNEL, COPY, FILL))))
            now += dur + rng.choice((0, 0, 1, rng.randint(2, 9)))
    if rng.random() < 0.5:
        events.append(Event(FORWARD, DEVICE_SPAN, min(e.ts for e in events), max(e.end for e in events), 7))
    events += [op("linear", ts, ts + 1) for ts in range(0, rng.randint(0, 9), 3)]
    return (in_order(events),)


IDLE_EDGES: list[Events] = [
    [kernel(3, 9)],
    [kernel(0, 3), kernel(5, 9)],
    [kernel(0, 3), kernel(3, 9)],
    [kernel(0, 1), kernel(3, 4), kernel(6, 7)],
    [kernel(4, 6), kernel(8, 9), kernel(9, 12), kernel(15, 16)],
    [kernel(0, 9), kernel(2, 4, tid=8), kernel(11, 12)],
    [kernel(0, 9), kernel(2, 4, tid=8), kernel(6, 7, tid=8), kernel(12, 14)],
    [kernel(0, 5), kernel(3, 9, tid=8), kernel(11, 12)],
    [kernel(0, 5), kernel(3, 9, tid=8)],
    [kernel(0, 3), kernel(4, 6, cat=COPY), kernel(8, 9)],
    [kernel(2, 4, cat=COPY), kernel(6, 7)],
    [kernel(0, 3), kernel(4, 6, cat=FILL), kernel(8, 9)],
    [kernel(2, 4, cat=FILL), kernel(6, 7)],
    [],
    [op("linear", 0, 2)],
    [op("linear", 0, 2), kernel(1, 3), op("linear", 3, 6), kernel(6, 8), op("item", 8, 12)],
    [kernel(1, 3), kernel(5, 8), Event(FORWARD, DEVICE_SPAN, 1, 7, 7)],
    [kernel(0, 3), kernel(0, 5, tid=8), kernel(6, 7)],
]
