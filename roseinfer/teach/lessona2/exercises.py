"""Checkers of a2: queries, judged by their results on small traces that are drawn, with the edges on purpose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from ..exercises.drawn import Case, Comparison, Expected, draw
from ..exercises.exercise import register as register_checker
from .events import (
    COPY,
    DEVICE_SPAN,
    FORWARD,
    KERNEL,
    OP,
    SPAN,
    Event,
    Events,
    contains,
    described,
    draw_host,
    in_order,
    is_op,
    kernel,
    op,
    span,
)
from .query_bench import run_query
from .rows import Rows, explain_rows

US_PER_MS = 1e3
AUTOGRAD = Event("autograd::engine", OP, 2, 3)


def register(exercise_id: str, comparison: Comparison) -> None:
    """Register a checker that first runs the query on an empty table: a message about its SQL needs no trace."""

    def judge(answer: Any) -> None:
        run_query(answer, [])
        comparison(answer)

    register_checker(exercise_id, judge, comparison)


def _cases(edges: Iterable[Events], drawn: Iterable[Case]) -> list[Case]:
    return [*((in_order(events),) for events in edges), *drawn]


# a2.1


def count_ops(events: Events, keep: Callable[[Event], bool] = is_op) -> Rows:
    counts = Counter(event.name for event in events if keep(event))
    return Rows(("name", "n"), sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _sorted_by(key: Callable[[tuple[str, int]], tuple]) -> Callable[[Events], Rows]:
    return lambda events: Rows(("name", "n"), sorted(count_ops(events).rows, key=key))


COUNT_MISTAKES = {
    "an op's name begins with `aten::`: a span is no op": partial(
        count_ops, keep=lambda e: is_op(e) or (e.cat == SPAN and e.name.startswith("roseinfer."))
    ),
    "`cat` is `cpu_op` for ops of other libraries, too": partial(count_ops, keep=lambda e: e.cat == OP),
    "the name has to begin with `aten::`, not only contain it": partial(count_ops, keep=lambda e: "aten::" in e.name),
    "every event is counted, and only ops should be": partial(count_ops, keep=lambda e: True),
    "`DESC` sorts from large to small": _sorted_by(lambda item: (item[1], item[0])),
    "sort by the count first, and by the name only where counts are equal": _sorted_by(lambda item: (item[0],)),
    "equal counts are sorted by name from a to z: `DESC` belongs to one column": _sorted_by(
        lambda item: (-item[1], tuple(-ord(letter) for letter in item[0]))
    ),
}


def _draw_with_others(rng: Random) -> Case:
    events = draw_host(rng)
    others = ["autograd::engine", "mylib::aten::cat", "aten_helper"]
    events += [Event(rng.choice(others), OP, rng.randint(0, 20), 2, tid=3) for _ in range(rng.randint(0, 2))]
    return (in_order(events),)


COUNT_EDGES: list[Events] = [
    [op("cat", 0, 2)],
    [op("cat", 0, 4), op("copy_", 1, 2)],
    [op("zeros", 0, 2), op("cat", 2, 4), op("zeros", 4, 5)],
    [op("zeros", 0, 2), op("cat", 2, 4)],
    [span(0, 9), op("cat", 1, 4), op("copy_", 2, 3), op("copy_", 5, 6)],
    [AUTOGRAD, op("cat", 3, 4)],
    [Event("mylib::aten::cat", OP, 0, 2), op("cat", 2, 3)],
    [span(0, 2)],
    [],
]
register(
    "a2.1",
    Comparison(
        _cases(COUNT_EDGES, draw(_draw_with_others)),
        Expected(count_ops, COUNT_MISTAKES, explain_rows(is_ordered=True)),
        described,
        run_query,
    ),
)


# a2.2

Inside = Callable[[Event, Event], bool]  # (op, span)


def starts_in(event: Event, around: Event) -> bool:
    return event.tid == around.tid and around.ts <= event.ts < around.end


def time_ops(
    events: Events,
    inside: Inside = starts_in,
    spans: Callable[[Event], bool] = lambda event: event.name == FORWARD,
    keep: Callable[[Event], bool] = is_op,
    unit: float = US_PER_MS,
    first_alone: bool = False,
) -> Rows:
    around = [event for event in events if event.cat == SPAN and spans(event)][: 1 if first_alone else None]
    sums: dict[str, float] = defaultdict(float)
    for event in events:
        for each in around:
            if event is not each and keep(event) and inside(event, each):
                sums[event.name] += event.dur / unit
    return Rows(("name", "ms"), sorted(sums.items()))


def _each_once(events: Events) -> Rows:
    durations = {event.name: event.dur / US_PER_MS for event in events if is_op(event)}
    return Rows(("name", "ms"), [(name, durations[name]) for name, _ in time_ops(events).rows])


def _averages(events: Events) -> Rows:
    times: dict[str, list[int]] = defaultdict(list)
    around = [event for event in events if event.name == FORWARD]
    for event in filter(is_op, events):
        times[event.name] += [event.dur for each in around if starts_in(event, each)]
    means = {name: sum(own) / len(own) / US_PER_MS for name, own in times.items() if own}
    return Rows(("name", "ms"), sorted(means.items()))


IN_SPAN_MISTAKES = {
    "an op of another thread runs at the same time, and not in this span: compare `tid`": partial(
        time_ops, inside=lambda e, s: s.ts <= e.ts < s.end
    ),
    "there are several spans of this name, and all of them count": partial(time_ops, first_alone=True),
    "a start at the span's end is outside: `<`, and BETWEEN takes both ends": partial(
        time_ops, inside=lambda e, s: e.tid == s.tid and s.ts <= e.ts <= s.end
    ),
    "a start at the span's first nanosecond is inside: `>=`": partial(
        time_ops, inside=lambda e, s: e.tid == s.tid and s.ts < e.ts < s.end
    ),
    "an op that began before the span is not inside, even if it ends in it or later": partial(
        time_ops, inside=lambda e, s: e.tid == s.tid and e.ts < s.end and e.end > s.ts
    ),
    "only spans `roseinfer.model.forward` are asked for": partial(time_ops, spans=lambda event: True),
    "a span inside a span is no op": partial(time_ops, keep=lambda e: is_op(e) or e.cat == SPAN),
    "`dur` is in nanoseconds: divide by 1e6": partial(time_ops, unit=1e-3),
    "those are microseconds, and a millisecond has 1,000 of them": partial(time_ops, unit=1),
    "those are seconds, and a second has 1,000 milliseconds": partial(time_ops, unit=1e6),
    "add up the durations: SUM, not AVG": _averages,
}

SPAN_EDGES: list[Events] = [
    [span(0, 9), op("cat", 2, 5)],
    [span(0, 9), op("cat", 0, 5)],
    [span(0, 9), op("cat", 9, 12)],
    [op("zeros", 0, 3), span(3, 9), op("cat", 4, 9)],
    [op("linear", 0, 9), span(2, 7), op("cat", 3, 5)],
    [span(0, 9), op("cat", 2, 5), op("cat", 1, 4, tid=2)],
    [span(0, 9, tid=2), op("cat", 2, 5)],
    [span(0, 4), op("cat", 1, 3), span(5, 9), op("cat", 6, 9)],
    [span(0, 4), op("cat", 1, 3), op("cat", 4, 5), span(5, 9)],
    [span(0, 9), op("linear", 1, 8), op("cat", 2, 5)],
    [span(0, 9, name="roseinfer.kv.append_token"), op("cat", 2, 5)],
    [span(0, 9), span(1, 8, name="roseinfer.kv.append_token"), op("cat", 2, 5)],
    [span(0, 20), AUTOGRAD, op("cat", 12, 15)],
    [op("cat", 2, 5)],
    [span(0, 20), op("cat", 1, 3), op("cat", 4, 9), op("zeros", 9, 10)],
]


def _draw_host(rng: Random) -> Case:
    return (draw_host(rng),)


def _draw_inside(rng: Random) -> Case:
    """Draw until no op that contains a span starts together with it: whether it is inside would depend on the rule."""
    while True:
        events = draw_host(rng)
        spans = [event for event in events if event.name == FORWARD]
        if not any(is_op(e) and e.ts == s.ts and contains(e, s) for e in events for s in spans):
            return (events,)


register(
    "a2.2",
    Comparison(
        _cases(SPAN_EDGES, draw(_draw_inside)),
        Expected(time_ops, IN_SPAN_MISTAKES, explain_rows(is_ordered=False)),
        described,
        run_query,
    ),
)


# a2.3

Inner = Callable[[Events, Event], Iterable[int]]  # the durations that are subtracted from an op's


def callers(events: Events, event: Event) -> Events:
    """The ops that enclose an op, the outermost one first."""
    return [other for other in events if contains(other, event)]


def called(events: Events, event: Event) -> list[int]:
    ops = [other for other in events if is_op(other)]
    return [other.dur for other in ops if (around := callers(ops, other)) and around[-1] is event]


def all_below(events: Events, event: Event) -> list[int]:
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


def _with_spans(events: Events, event: Event) -> list[int]:
    """As if a span were an op: what is directly inside, of either kind."""
    return [other.dur for other in events if (around := callers(events, other)) and around[-1] is event]


def _any_thread(events: Events, event: Event) -> list[int]:
    return called([each._replace(tid=1) for each in events], event._replace(tid=1))


def _on_one_thread(events: Events) -> Rows:
    """As if all threads were one: an op is called by the last one before it that has not ended."""
    ops = [event for event in events if is_op(event)]
    sums: dict[str, float] = {event.name: 0 for event in ops}
    for number, event in enumerate(ops):
        sums[event.name] += event.dur / US_PER_MS
        if open_ops := [other for other in ops[:number] if event.ts < other.end]:
            sums[open_ops[-1].name] -= event.dur / US_PER_MS
    return Rows(("name", "self_ms"), sorted(sums.items()))


SELF_MISTAKES: dict[str, Callable[[Events], Rows]] = {
    "that is inclusive time: subtract the ops that it calls": partial(self_times, inner=lambda events, event: ()),
    "an op that a called op calls is in that op's time already, and you subtract it again": partial(
        self_times, inner=all_below
    ),
    "an op may call several ops, and all of them are subtracted": partial(
        self_times, inner=lambda events, event: sorted(called(events, event))[-1:]
    ),
    "an op that calls nothing has a self time, too: its duration": _callers_alone,
    "an op that calls others has a self time, too": _leaves_alone,
    "spans are not subtracted": partial(self_times, inner=_with_spans),
    "ops of other threads are not called by it: compare `tid`": _on_one_thread,
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
    [op("cat", 0, 9), op("cat", 2, 5)],
    [op("cat", 0, 5), op("copy_", 5, 9)],
    [op("cat", 0, 9), op("copy_", 2, 5, tid=2)],
    [op("cat", 0, 9), op("copy_", 2, 5, tid=2), op("empty", 3, 4), op("empty", 3, 4, tid=2)],
    [op("linear", 0, 9), span(1, 8), op("copy_", 2, 5)],
    [span(0, 9), op("linear", 1, 8), op("copy_", 2, 5)],
    [op("linear", 0, 12), op("cat", 1, 4), op("linear", 5, 11), op("cat", 6, 9), op("copy_", 7, 8)],
]

register(
    "a2.3",
    Comparison(
        _cases(SELF_EDGES, draw(_draw_host)),
        Expected(self_times, SELF_MISTAKES, explain_rows(is_ordered=False)),
        described,
        run_query,
    ),
)


# a2.4


def is_work(event: Event) -> bool:
    return event.cat in (KERNEL, COPY)


def gaps_between(work: Events) -> list[int]:
    """Times in which none of them runs, zeros included."""
    found = []
    for number, event in enumerate(work[1:], start=1):
        found.append(max(0, event.ts - max(other.end for other in work[:number])))
    return found


def idle(
    events: Events,
    keep: Callable[[Event], bool] = is_work,
    gaps_of: Callable[[Events], list[int]] = gaps_between,
    unit: float = 1,
    with_zeros: bool = False,
) -> Rows:
    gaps = [gap for gap in gaps_of([event for event in events if keep(event)]) if gap or with_zeros]
    return Rows(("gaps", "idle_ms"), [(len(gaps), sum(gaps) / US_PER_MS * unit)])


def _since_the_last(work: Events) -> list[int]:
    return [max(0, after.ts - before.end) for before, after in zip(work, work[1:], strict=False)]


def _by_stream(work: Events) -> list[int]:
    streams = {event.tid: [other for other in work if other.tid == event.tid] for event in work}
    return [gap for own in streams.values() for gap in gaps_between(own)]


def _or_touching(work: Events) -> list[int]:
    until = [max(other.end for other in work[:number]) for number in range(1, len(work))]
    return [event.ts - end for event, end in zip(work[1:], until, strict=True) if event.ts >= end]


def _signed(work: Events) -> list[int]:
    return [after.ts - before.end for before, after in zip(work, work[1:], strict=False)]


def _from_zero(work: Events) -> list[int]:
    return [*([work[0].ts] if work else []), *gaps_between(work)]


def _as_if_in_turn(events: Events) -> Rows:
    """All of the time less all durations, as if no two pieces ran at the same time."""
    work = [event for event in events if is_work(event)]
    whole = max(event.end for event in work) - work[0].ts
    gaps = idle(events).rows[0][0]
    return Rows(("gaps", "idle_ms"), [(gaps, (whole - sum(event.dur for event in work)) / US_PER_MS)])


def _null_for_none(events: Events) -> Rows:
    [(gaps, ms)] = idle(events).rows
    return Rows(("gaps", "idle_ms"), [(gaps, ms if gaps else None)])


IDLE_MISTAKES: dict[str, Callable[[Events], Rows]] = {
    "the piece before it may have ended while a longer one still runs: take the latest end of all before": partial(
        idle, gaps_of=_since_the_last
    ),
    "work on two streams overlaps, which gives negative gaps: they are none": partial(idle, gaps_of=_signed),
    "while one stream waits, another one may work: look at all streams together": partial(idle, gaps_of=_by_stream),
    "two pieces of work may run at the same time, and their durations must not be added": _as_if_in_turn,
    "a piece of work that starts when the one before ends leaves no gap": partial(
        idle, gaps_of=_or_touching, with_zeros=True
    ),
    "a memory copy is work of the device, too": partial(idle, keep=lambda event: event.cat == KERNEL),
    "a span of the device (`gpu_user_annotation`) is no work, it only has a name for it": partial(
        idle, keep=lambda event: is_work(event) or event.cat == DEVICE_SPAN
    ),
    "ops of the host are not the device's work": partial(idle, keep=lambda event: is_work(event) or event.cat == OP),
    "every event counts as work, and only the device's should": partial(idle, keep=lambda event: True),
    "the time before the first piece of work is not a gap": partial(idle, gaps_of=_from_zero),
    "without a gap the sum is 0: COALESCE(SUM(...), 0)": _null_for_none,
    "`ts` and `dur` are in nanoseconds: divide by 1e6": partial(idle, unit=1e6),
    "those are microseconds, and a millisecond has 1,000 of them": partial(idle, unit=1e3),
}


def _draw_device(rng: Random) -> Case:
    events: Events = []
    for tid in range(7, 7 + rng.randint(1, 3)):
        now = rng.randint(0, 6)
        for _ in range(rng.randint(1, 4)):
            dur = rng.choice((1, 2, 3, rng.randint(4, 15)))
            events.append(kernel(now, now + dur, tid, rng.choice((KERNEL, KERNEL, COPY))))
            now += dur + rng.choice((0, 0, 1, rng.randint(2, 9)))
    if rng.random() < 0.5:
        events.append(Event(FORWARD, DEVICE_SPAN, min(e.ts for e in events), max(e.end for e in events), 7))
    events += [op("linear", ts, ts + 1) for ts in range(0, rng.randint(0, 9), 3)]
    return (in_order(events),)


IDLE_EDGES: list[Events] = [
    [kernel(3, 9)],
    [kernel(0, 3), kernel(5, 9)],
    [kernel(0, 3), kernel(3, 9)],
    [kernel(4, 6), kernel(8, 9), kernel(9, 12), kernel(15, 16)],
    [kernel(0, 9), kernel(2, 4, tid=8), kernel(11, 12)],
    [kernel(0, 9), kernel(2, 4, tid=8), kernel(6, 7, tid=8), kernel(12, 14)],
    [kernel(0, 5), kernel(3, 9, tid=8), kernel(11, 12)],
    [kernel(0, 5), kernel(3, 9, tid=8)],
    [kernel(0, 3), kernel(4, 6, cat=COPY), kernel(8, 9)],
    [kernel(2, 4, cat=COPY), kernel(6, 7)],
    [op("linear", 0, 2), kernel(1, 3), op("linear", 3, 6), kernel(6, 8), op("item", 8, 12)],
    [kernel(1, 3), kernel(5, 8), Event(FORWARD, DEVICE_SPAN, 1, 7, 7)],
    [kernel(0, 3), kernel(0, 5, tid=8), kernel(6, 7)],
]

register(
    "a2.4",
    Comparison(
        _cases(IDLE_EDGES, draw(_draw_device)),
        Expected(idle, IDLE_MISTAKES, explain_rows(is_ordered=False)),
        described,
        run_query,
    ),
)
