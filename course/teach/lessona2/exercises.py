"""Checkers of a2: queries, judged by their results on small traces that are drawn, with the edges on purpose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from ..exercises.drawn import Case, Comparison, Expected, draw
from ..exercises.exercise import register as register_checker
from ..exercises.wrong import Wrong
from .events import (
    FORWARD,
    OP,
    OTHER_LIBRARIES,
    SPAN,
    Event,
    Events,
    contains,
    described,
    draw_host,
    in_order,
    in_quarters,
    is_cpu_op,
    is_op,
    many_ops,
    op,
    span,
)
from .idle_reference import IDLE_EDGES, IDLE_MISTAKES, draw_device, idle
from .query_bench import run_query, without_limit
from .rows import Rows, explain_rows
from .self_time_reference import NOT_ATEN, SELF_EDGES, SELF_MISTAKES, US_PER_MS, self_times

AUTOGRAD = Event("autograd::engine", OP, 2, 3)


def register(exercise_id: str, comparison: Comparison) -> None:
    """Register a checker that first runs the query on an empty table: a message about its SQL needs no trace.

    The checker names a LIMIT where nothing else is wrong.
    """

    def passes(query: str) -> bool:
        try:
            comparison(lambda: query)
        except Wrong:
            return False
        return True

    def judge(answer: Any) -> None:
        run_query(answer, [])
        try:
            comparison(answer)
        except Wrong as wrong:
            query = without_limit(answer)
            if query is None or not passes(query):
                raise
            raise Wrong(f"{wrong}: LIMIT leaves out rows: every op is asked for") from None

    register_checker(exercise_id, judge, comparison)


def _cases(edges: Iterable[Events], drawn: Iterable[Case]) -> list[Case]:
    """Join both; every second drawn case has fractions of a microsecond."""
    cases = [(in_quarters(events),) if number % 2 else (events,) for number, (events,) in enumerate(drawn)]
    return [*((in_order(events),) for events in edges), *cases]


# a2.1


def count_ops(events: Events, keep: Callable[[Event], bool] = is_op) -> Rows:
    counts = Counter(event.name for event in events if keep(event))
    return Rows(("name", "n"), sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _sorted_by(key: Callable[[tuple[str, int]], tuple]) -> Callable[[Events], Rows]:
    return lambda events: Rows(("name", "n"), sorted(count_ops(events).rows, key=key))


COUNT_MISTAKES: dict[str, Callable[[Events], Rows]] = {
    "an op's name begins with `aten::`: a span is no op": partial(
        count_ops, keep=lambda e: is_op(e) or (e.cat == SPAN and e.name.startswith("roseinfer."))
    ),
    NOT_ATEN: partial(count_ops, keep=is_cpu_op),
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
    [*OTHER_LIBRARIES, op("cat", 12, 15)],
    [span(0, 2)],
    [*(op("cat", ts, ts + 0.5) for ts in range(11)), op("copy_", 11, 12), op("copy_", 12, 13)],
    many_ops(),
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


def _on_any_thread(event: Event, around: Event) -> bool:
    return around.ts <= event.ts < around.end


def time_ops(
    events: Events,
    inside: Inside = starts_in,
    spans: Callable[[Event], bool] = lambda event: event.name == FORWARD,
    keep: Callable[[Event], bool] = is_op,
    unit: float = US_PER_MS,
    first_alone: bool = False,
    with_span: bool = False,
    of_span: bool = False,
) -> Rows:
    """Time the ops in spans. with_span: as if a span were inside itself. of_span: its duration, once for each op."""
    around = [event for event in events if event.cat == SPAN and spans(event)][: 1 if first_alone else None]
    sums: dict[str, float] = defaultdict(float)
    for event in events:
        for each in around:
            if (with_span or event is not each) and keep(event) and inside(event, each):
                sums[event.name] += (each if of_span else event).dur / unit
    return Rows(("name", "ms"), sorted(sums.items()))


def _each_once(events: Events) -> Rows:
    durations = {event.name: event.dur / US_PER_MS for event in events if is_op(event)}
    return Rows(("name", "ms"), [(name, durations[name]) for name, _ in time_ops(events).rows])


def _averages(events: Events) -> Rows:
    times: dict[str, list[float]] = defaultdict(list)
    around = [event for event in events if event.name == FORWARD]
    for event in filter(is_op, events):
        times[event.name] += [event.dur for each in around if starts_in(event, each)]
    means = {name: sum(own) / len(own) / US_PER_MS for name, own in times.items() if own}
    return Rows(("name", "ms"), sorted(means.items()))


IN_SPAN_MISTAKES: dict[str, Callable[[Events], Rows]] = {
    "an op of another thread runs at the same time, and not in this span: compare `tid`": partial(
        time_ops, inside=_on_any_thread
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
    NOT_ATEN: partial(time_ops, keep=is_cpu_op),
    "a span inside a span is no op": partial(time_ops, keep=lambda e: is_op(e) or e.cat == SPAN),
    "only ops are asked for, and you have every event that starts in the span": partial(
        time_ops, keep=lambda e: True, with_span=True
    ),
    "only ops are asked for, and of this thread: you have every event, and do not compare `tid`": partial(
        time_ops, keep=lambda e: True, with_span=True, inside=_on_any_thread
    ),
    "all spans of this name count, not only the first, and `tid` has to be compared": partial(
        time_ops, first_alone=True, inside=_on_any_thread
    ),
    "you add up the durations of the spans: take those of the ops": partial(time_ops, of_span=True),
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
    [span(0, 9), op("cat", 1, 3), op("cat", 5, 7)],
    [span(0, 9, name="roseinfer.kv.append_token"), op("cat", 2, 5)],
    [span(0, 9), span(1, 8, name="roseinfer.kv.append_token"), op("cat", 2, 5)],
    [span(0, 9, name="roseinfer.block.forward"), op("cat", 2, 5)],
    [span(0, 20), *many_ops(since=1)],
    [span(0, 20), AUTOGRAD, op("cat", 12, 15)],
    [span(0, 20), *OTHER_LIBRARIES, op("cat", 12, 15)],
    [op("cat", 2, 5)],
    [span(0, 20), op("cat", 1, 3), op("cat", 4, 9), op("zeros", 9, 10)],
]


def _draw_host(rng: Random) -> Case:
    return (draw_host(rng),)


def _draw_inside(rng: Random) -> Case:
    """Draw until no op that contains a span starts together with it, as rules differ on whether it is inside."""
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

register(
    "a2.4",
    Comparison(
        _cases(IDLE_EDGES, draw(draw_device)),
        Expected(idle, IDLE_MISTAKES, explain_rows(is_ordered=False)),
        described,
        run_query,
    ),
)
