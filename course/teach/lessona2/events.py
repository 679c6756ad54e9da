"""Small traces for exercises: events with round times, drawn so that those of a thread lie inside one another."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

OP, SPAN = "cpu_op", "user_annotation"
KERNEL, COPY, FILL = "kernel", "gpu_memcpy", "gpu_memset"
FORWARD = "roseinfer.model.forward"
SPANS = (FORWARD, FORWARD, "roseinfer.kv.append_token", "roseinfer.block.forward", f"{FORWARD}.block")
# The last two names are of other libraries, and such as a wrong pattern takes for PyTorch's.
OPS = ("aten::cat", "aten::copy_", "aten::empty", "aten::linear", "aten::zeros", "mylib::aten::cat", "aten_helper")
MANY, MOST_TOLD = 150, 20  # more names than a LIMIT lets through; of so many events, not all are told
LONGEST = 30  # of an outermost event, in microseconds
DEEPEST = 6  # events around one


class Event(NamedTuple):
    """An event of a trace, with ts and dur in microseconds."""

    name: str
    cat: str
    ts: float
    dur: float
    tid: int = 1

    @property
    def end(self) -> float:
        return self.ts + self.dur


Events = list[Event]


def op(name: str, ts: float, end: float, tid: int = 1) -> Event:
    return Event(f"aten::{name}", OP, ts, end - ts, tid)


def span(ts: float, end: float, tid: int = 1, name: str = FORWARD) -> Event:
    return Event(name, SPAN, ts, end - ts, tid)


def kernel(ts: float, end: float, tid: int = 7, cat: str = KERNEL, name: str = "gemm") -> Event:
    return Event(name, cat, ts, end - ts, tid)


def many_ops(since: int = 0) -> Events:
    """Make MANY ops, one a microsecond, each with a name of its own: those that come later are earlier by name."""
    return [op(f"op_{MANY - n:03}", since + n, since + n + 1) for n in range(MANY)]


def in_quarters(events: Sequence[Event]) -> Events:
    """Make all times a quarter as long: a trace has nanoseconds, so a time in microseconds has a fraction."""
    return [event._replace(ts=event.ts / 4, dur=event.dur / 4) for event in events]


def in_order(events: Sequence[Event]) -> Events:
    """Sort events in the order of a trace's ids: by start, an enclosing event before those inside it."""
    return sorted(events, key=lambda event: (event.ts, -event.dur))


def draw_host(rng: Random) -> Events:
    """Draw ops and spans of one thread or two. A span is in no span of its own name."""
    events: Events = []
    for tid in range(1, rng.randint(1, 2) + 1):
        now = rng.randint(0, 3)
        for _ in range(rng.randint(1, 3)):
            dur = rng.randint(4, LONGEST)
            events += _nested(rng, now, now + dur, tid, depth=0, spans=SPANS)
            now += dur + rng.choice((0, 0, 1, 4))
    return in_order(events)


def _nested(rng: Random, ts: int, end: int, tid: int, depth: int, spans: Sequence[str]) -> Events:
    """Draw an event from ts to end, and what it contains, often up to its first or its last moment.

    A span does not start together with an op around it: rules differ on whether that op is inside.
    """
    name, cat = rng.choice(OPS), OP
    if spans and rng.random() < (0.6 if depth == 0 else 0.2):
        name, cat = rng.choice(spans), SPAN
        spans = [other for other in spans if other != name]
    events = [Event(name, cat, ts, end - ts, tid)]
    if depth < DEEPEST:
        # Longer than what it contains: of two equal ones, no query could tell which one is outside.
        now, inner_end = rng.choice(((ts, end - 1), (ts + 1, end), (ts + 1, end - 1)))
        while inner_end - now > 1 and rng.random() < 0.8:
            stop = rng.choice((inner_end, rng.randint(now + 1, inner_end)))
            events += _nested(rng, now, stop, tid, depth + 1, spans if cat == SPAN or now > ts else ())
            now = stop + rng.choice((0, 0, 1))
    return events


def described(events: Sequence[Event]) -> str:
    """Describe the trace in words: `aten::cat 2..5`, in microseconds, by thread."""
    if not events:
        return "in an empty trace"
    threads = []
    for tid in sorted({event.tid for event in events}):
        own = [_described(event) for event in events if event.tid == tid]
        rest = f", ... ({len(own)} events)" if len(own) > MOST_TOLD else ""
        threads.append(f"tid {tid}: {', '.join(own[:MOST_TOLD])}{rest}")
    return f"in the trace (in µs) {'; '.join(threads)}"


def _described(event: Event) -> str:
    kind = "" if event.cat == OP and event.name.startswith("aten::") else f" ({event.cat})"
    return f"`{event.name}`{kind} {event.ts:g}..{event.end:g}"
