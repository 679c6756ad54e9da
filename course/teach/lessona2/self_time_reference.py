"""Self time of ops, as exercise a2.3 asks for it: the right one, mistakes, and traces that show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

from .events import OTHER_LIBRARIES, SPAN, Event, Events, contains, is_cpu_op, is_op, many_ops, op, span
from .rows import Rows

US_PER_MS = 1e3
NOT_ATEN = "an op's name begins with `aten::`, and `cpu_op` has ops of other libraries, too"

Inner = Callable[[Events, Event], Iterable[float]]  # the durations that are subtracted from an op's


def callers(events: Events, event: Event) -> Events:
    """List the ops that enclose an op, the outermost one first."""
    return [other for other in events if contains(other, event)]


def called(events: Events, event: Event) -> list[float]:
    ops = [other for other in events if is_op(other)]
    return [other.dur for other in ops if (around := callers(ops, other)) and around[-1] is event]


def all_below(events: Events, event: Event) -> list[float]:
    return [other.dur for other in events if is_op(other) and contains(event, other)]


def self_times(events: Events, inner: Inner = called, keep: Callable[[Event], bool] = is_op, unit: float = 1) -> Rows:
    sums: dict[str, float] = defaultdict(float)
    for event in filter(keep, events):
        sums[event.name] += (event.dur - sum(inner(events, event))) / US_PER_MS * unit
    return Rows(("name", "self_ms"), sorted(sums.items()))


def _calls_nothing(event: Event, events: Events) -> bool:
    return is_op(event) and not called(events, event)


def _leaves_alone(events: Events) -> Rows:
    return self_times([e for e in events], keep=partial(_calls_nothing, events=events))


def _callers_alone(events: Events) -> Rows:
    return self_times(events, keep=lambda event: is_op(event) and bool(called(events, event)))


def outermost(events: Events, event: Event) -> list[float]:
    """List the durations of the ops whose outermost caller this is."""
    ops = [other for other in events if is_op(other)]
    return [other.dur for other in ops if (around := callers(ops, other)) and around[0] is event]


def _with_spans(events: Events, event: Event) -> list[float]:
    """List the durations of what is directly inside, as if a span were an op."""
    return [other.dur for other in events if (around := callers(events, other)) and around[-1] is event]


def _any_thread(events: Events, event: Event) -> list[float]:
    return called([each._replace(tid=1) for each in events], event._replace(tid=1))


def _on_one_thread(events: Events) -> Rows:
    """Compute self times as if all threads were one: an op is called by the last one before it that has not ended."""
    ops = [event for event in events if is_op(event)]
    sums: dict[str, float] = {event.name: 0 for event in ops}
    for number, event in enumerate(ops):
        sums[event.name] += event.dur / US_PER_MS
        if open_ops := [other for other in ops[:number] if event.ts < other.end]:
            sums[open_ops[-1].name] -= event.dur / US_PER_MS
    return Rows(("name", "self_ms"), sorted(sums.items()))


def _above_zero(events: Events) -> Rows:
    rows = self_times(events)
    return Rows(rows.columns, [row for row in rows.rows if row[1] > 0])


SELF_MISTAKES: dict[str, Callable[[Events], Rows]] = {
    "that is inclusive time: subtract the ops that it calls": partial(self_times, inner=lambda events, event: ()),
    "an op that a called op calls is in that op's time already, and you subtract it again": partial(
        self_times, inner=all_below
    ),
    "of the ops around it you take the outermost one, not the innermost: MAX(id), not MIN": partial(
        self_times, inner=outermost
    ),
    "an op may call several ops, and all of them are subtracted": partial(
        self_times, inner=lambda events, event: sorted(called(events, event))[-1:]
    ),
    "an op that calls nothing has a self time, too: its duration": _callers_alone,
    "an op that calls others has a self time, too": _leaves_alone,
    "an op whose self time is 0 has a row, too": _above_zero,
    "spans are not subtracted": partial(self_times, inner=_with_spans),
    "ops of other threads are not called by it: compare `tid`": _on_one_thread,
    NOT_ATEN: partial(self_times, keep=is_cpu_op),
    "only ops are asked for, and a span is no op": partial(self_times, keep=lambda e: is_op(e) or e.cat == SPAN),
    "`dur` is in nanoseconds: divide by 1e6": partial(self_times, unit=1e6),
    "those are microseconds, and a millisecond has 1,000 of them": partial(self_times, unit=1e3),
}

SELF_EDGES: list[Events] = [
    [op("cat", 0, 5)],
    [op("zeros", 0, 9), op("empty", 2, 5)],
    [op("zeros", 0, 9), op("empty", 0, 5)],
    [op("zeros", 0, 9), op("empty", 5, 9)],
    [op("zeros", 0, 9), op("empty", 1, 3), op("copy_", 3, 7)],
    [op("linear", 0, 9), op("cat", 1, 8), op("copy_", 2, 5)],
    [op("linear", 0, 9), op("cat", 1, 8), op("copy_", 2, 4), op("copy_", 5, 6)],
    [op("linear", 0, 9), op("cat", 0, 4), op("copy_", 4, 9)],
    [op("cat", 0, 9), op("cat", 2, 5)],
    [op("cat", 0, 5), op("copy_", 5, 9)],
    [op("cat", 0, 3), op("cat", 5, 8)],
    [op("cat", 0, 9), op("copy_", 2, 5, tid=2)],
    [op("cat", 0, 9), op("copy_", 2, 5, tid=2), op("empty", 3, 4), op("empty", 3, 4, tid=2)],
    [op("linear", 0, 9), span(1, 8), op("copy_", 2, 5)],
    [span(0, 9), op("linear", 1, 8), op("copy_", 2, 5)],
    [*OTHER_LIBRARIES, op("cat", 12, 15)],
    [op("linear", 0, 12), op("cat", 1, 4), op("linear", 5, 11), op("cat", 6, 9), op("copy_", 7, 8)],
    many_ops(),
]
