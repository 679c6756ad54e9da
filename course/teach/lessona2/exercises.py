"""Checkers of a2: queries, judged by their results on small traces that are drawn, with the edges on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from random import Random
from typing import Any

from ..exercises.drawn import Case, Comparison, Expected, draw
from ..exercises.exercise import register
from ..exercises.solutions import solution
from ..exercises.wrong import Wrong
from .events import (
    COPY,
    DEVICE_SPAN,
    FILL,
    FORWARD,
    KERNEL,
    OP,
    OTHER_LIBRARIES,
    Event,
    Events,
    contains,
    described,
    draw_host,
    in_order,
    in_quarters,
    is_op,
    kernel,
    many_ops,
    op,
    span,
)
from .query_bench import run_query, without_limit
from .rows import Rows, explain_rows

Mistakes = Mapping[str, Mapping[str, str]]  # what is said about a query -> the changes that make it of the solution


def _register(
    exercise_id: str, edges: Iterable[Events], drawn: Iterable[Case], mistakes: Mistakes, is_ordered: bool = False
) -> None:
    """Register a checker that first runs the query on an empty table: a message about its SQL needs no trace.

    Every second drawn case gets fractions of a microsecond. The checker names a LIMIT where nothing else is wrong.
    """
    cases = [(in_quarters(events),) if number % 2 else (events,) for number, (events,) in enumerate(drawn)]
    known = {why: _rows_of(solution(exercise_id, changes)) for why, changes in mistakes.items()}
    expected = Expected(_rows_of(solution(exercise_id)), known, explain_rows(is_ordered))
    comparison = Comparison([*((in_order(events),) for events in edges), *cases], expected, described, run_query)

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

    register(exercise_id, judge, comparison)


def _rows_of(query: str) -> Callable[[Events], Rows]:
    """Make a function that runs a query of the course: on each trace once."""
    rows = cache(partial(run_query, query))
    return lambda events: rows(tuple(events))


def _draw_host(rng: Random) -> Case:
    return (draw_host(rng),)


AUTOGRAD = Event("autograd::engine", OP, 2, 3)
NOT_ATEN = "an op's name begins with `aten::`, and `cpu_op` has ops of other libraries, too"
IS_OP = "name LIKE 'aten::%'"
UNITS: Mistakes = {
    "`dur` is in nanoseconds: divide by 1e6": {" / 1e6": ""},
    "those are microseconds, and a millisecond has 1,000 of them": {"1e6": "1e3"},
    "those are seconds, and a second has 1,000 milliseconds": {"1e6": "1e9"},
}

# a2.1

COUNT_MISTAKES: Mistakes = {
    "an op's name begins with `aten::`: a span is no op": {IS_OP: f"{IS_OP} OR cat = 'user_annotation'"},
    NOT_ATEN: {IS_OP: "cat = 'cpu_op'"},
    "the name has to begin with `aten::`, not only contain it": {"'aten": "'%aten"},
    "every event is counted, and only ops should be": {f"WHERE {IS_OP}": ""},
    "`DESC` sorts from large to small": {" DESC": ""},
    "sort by the count first, and by the name only where counts are equal": {"n DESC, ": ""},
    "equal counts are sorted by name from a to z: `DESC` belongs to one column": {"DESC, name": "DESC, name DESC"},
}
COUNT_EDGES: list[Events] = [
    [op("cat", 0, 2)],
    [op("cat", 0, 0), op("cat", 0, 2)],
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


def _draw_with_others(rng: Random) -> Case:
    events = draw_host(rng)
    others = ["autograd::engine", "mylib::aten::cat", "aten_helper"]
    events += [Event(rng.choice(others), OP, rng.randint(0, 20), 2, tid=3) for _ in range(rng.randint(0, 2))]
    return (in_order(events),)


_register("a2.1", COUNT_EDGES, draw(_draw_with_others), COUNT_MISTAKES, is_ordered=True)

# a2.2

ON_THREAD, STARTED = "op.tid = span.tid AND ", "op.ts >= span.ts"
IS_FORWARD = f"span.name = '{FORWARD}'"
FIRST_SPAN = {"slice AS span": f"(FROM slice WHERE name = '{FORWARD}' ORDER BY id LIMIT 1) AS span"}
IN_SPAN_MISTAKES: Mistakes = {
    "an op of another thread runs at the same time, and not in this span: compare `tid`": {ON_THREAD: ""},
    "there are several spans of this name, and all of them count": FIRST_SPAN,
    "a start at the span's end is outside: `<`, and BETWEEN takes both ends": {"op.ts < span": "op.ts <= span"},
    "a start at the span's first nanosecond is inside: `>=`": {STARTED: "op.ts > span.ts"},
    "an op that began before the span is not inside, even if it ends in it or later": {
        STARTED: "op.ts + op.dur > span.ts"
    },
    "only spans `roseinfer.model.forward` are asked for": {IS_FORWARD: "span.cat = 'user_annotation'"},
    NOT_ATEN: {f"op.{IS_OP}": "op.cat = 'cpu_op'"},
    "a span inside a span is no op": {
        f"op.{IS_OP}": f"(op.{IS_OP} OR op.cat = 'user_annotation' AND op.id <> span.id)"
    },
    "only ops are asked for, and you have every event that starts in the span": {f"op.{IS_OP} AND ": ""},
    "only ops are asked for, and of this thread: you have every event, and do not compare `tid`": {
        f"op.{IS_OP} AND ": "",
        ON_THREAD: "",
    },
    "all spans of this name count, not only the first, and `tid` has to be compared": {**FIRST_SPAN, ON_THREAD: ""},
    "you add up the durations of the spans: take those of the ops": {"SUM(op.dur)": "SUM(span.dur)"},
    "add up the durations: SUM, not AVG": {"SUM": "AVG"},
    **UNITS,
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
    [span(0, 9, name=f"{FORWARD}.block"), op("cat", 2, 5)],
    [span(0, 200), *many_ops(since=1)],
    [span(0, 20), AUTOGRAD, op("cat", 12, 15)],
    [span(0, 20), *OTHER_LIBRARIES, op("cat", 12, 15)],
    [op("cat", 2, 5)],
    [span(0, 20), op("cat", 1, 3), op("cat", 4, 9), op("zeros", 9, 10)],
]


def _draw_inside(rng: Random) -> Case:
    """Draw until no op that contains a span starts together with it, as rules differ on whether it is inside."""
    while True:
        events = draw_host(rng)
        spans = [event for event in events if event.name == FORWARD]
        if not any(is_op(e) and e.ts == s.ts and contains(e, s) for e in events for s in spans):
            return (events,)


_register("a2.2", SPAN_EDGES, draw(_draw_inside), IN_SPAN_MISTAKES)

# a2.3

OPS = f"SELECT * FROM slice WHERE {IS_OP}"
SELF_MISTAKES: Mistakes = {
    "that is inclusive time: subtract the ops that it calls": {" - COALESCE(called.dur, 0)": ""},
    "an op that a called op calls is in that op's time already, and you subtract it again": {
        "MAX(around.id)": "around.id",
        "GROUP BY op.id, op.dur": "",
    },
    "of the ops around it you take the outermost one, not the innermost: MAX(id), not MIN": {"MAX(": "MIN("},
    "an op may call several ops, and all of them are subtracted": {"SUM(dur)": "MAX(dur)"},
    "an op that calls nothing has a self time, too: its duration": {"LEFT JOIN": "JOIN"},
    "an op that calls others has a self time, too": {"called.id = op.id": "called.id = op.id WHERE called.id IS NULL"},
    "an op whose self time is 0 has a row, too": {"GROUP BY name": "GROUP BY name HAVING self_ms > 0"},
    "spans are not subtracted": {OPS: "FROM slice", "GROUP BY name": f"WHERE {IS_OP} GROUP BY name"},
    "ops of other threads are not called by it: compare `tid`": {"around.tid = op.tid AND ": ""},
    NOT_ATEN: {IS_OP: "cat = 'cpu_op'"},
    "only ops are asked for, and a span is no op": {IS_OP: f"{IS_OP} OR cat = 'user_annotation'"},
    **UNITS,
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
    [op(f"op_{depth}", depth, 20 - depth) for depth in range(8)],
    many_ops(),
]
_register("a2.3", SELF_EDGES, draw(_draw_host), SELF_MISTAKES)

# a2.4

WORK, LATEST = "cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')", "UNBOUNDED PRECEDING"
SUM_OF_GAPS = "COALESCE(SUM(ts - busy_until), 0)"
IDLE_MISTAKES: Mistakes = {
    "the piece before it may have ended while a longer one still runs: take the latest end of all before": {
        LATEST: "1 PRECEDING"
    },
    "work on two streams overlaps, which gives negative times: those are not gaps": {
        LATEST: "1 PRECEDING",
        "ts > busy_until": "ts <> busy_until",
    },
    "while one stream waits, another one may work: look at all streams together": {
        "ORDER BY": "PARTITION BY tid ORDER BY"
    },
    "two pieces of work may run at the same time, and their durations must not be added": {
        SUM_OF_GAPS: f"(SELECT COALESCE(MAX(ts + dur) - MIN(ts) - SUM(dur), 0) FROM slice WHERE {WORK})"
    },
    "a piece of work that starts when the one before ends leaves no gap": {"ts > busy": "ts >= busy"},
    "memory copies and fills are work of the device, too": {WORK: "cat = 'kernel'"},
    "a memory copy (`gpu_memcpy`) is work of the device, too": {"'gpu_memcpy', ": ""},
    "a fill (`gpu_memset`) is work of the device, too": {", 'gpu_memset'": ""},
    "a span of the device (`gpu_user_annotation`) is no work, it only has a name for it": {
        "'kernel'": "'kernel', 'gpu_user_annotation'"
    },
    "ops of the host are not the device's work": {"'kernel'": "'kernel', 'cpu_op'"},
    "calls of the host (`cuda_runtime`) are not the device's work": {
        WORK: "cat NOT IN ('cpu_op', 'user_annotation', 'gpu_user_annotation')"
    },
    "every event counts as work, and only the device's should": {f"WHERE {WORK}": ""},
    "the time before the first piece of work is not a gap": {
        "MAX(ts + dur) OVER (": "COALESCE(MAX(ts + dur) OVER (",
        ") AS busy_until": "), 0) AS busy_until",
    },
    "without work there is no gap, and both are 0": {
        "COUNT(*)": "COUNT(*) - (SELECT COUNT(*) = 0 FROM work)::INT",
        SUM_OF_GAPS: f"(SELECT MAX(0) FROM work) + {SUM_OF_GAPS}",
    },
    **UNITS,
}


def _launch(ts: float, end: float) -> Event:
    """Make a call of the host that launches a kernel, on a thread whose number is above those of streams."""
    return Event("cudaLaunchKernel", "cuda_runtime", ts, end - ts, tid=12)


IDLE_EDGES: list[Events] = [
    [kernel(3, 9)],
    [kernel(0, 3), kernel(5, 9)],
    [kernel(0, 3), kernel(3, 9)],
    [kernel(0, 1), kernel(3, 4), kernel(6, 7)],
    [kernel(4, 6), kernel(8, 9), kernel(9, 12), kernel(15, 16)],
    [kernel(0, 9), kernel(2, 4, tid=8), kernel(11, 12)],
    [kernel(0, 9), kernel(2, 4, tid=8), kernel(6, 7, tid=8), kernel(12, 14)],
    [kernel(0, 60), *(kernel(2 * n + 1, 2 * n + 2, tid=8) for n in range(25)), kernel(65, 66)],
    [kernel(0, 5), kernel(3, 9, tid=8), kernel(11, 12)],
    [kernel(0, 5), kernel(3, 9, tid=8)],
    [kernel(0, 3), kernel(4, 6, cat=COPY), kernel(8, 9)],
    [kernel(2, 4, cat=COPY), kernel(6, 7)],
    [kernel(0, 3), kernel(4, 6, cat=FILL), kernel(8, 9)],
    [kernel(2, 4, cat=FILL), kernel(6, 7)],
    [],
    [op("linear", 0, 2)],
    [op("linear", 0, 2), kernel(1, 3), op("linear", 3, 6), kernel(6, 8), op("item", 8, 12)],
    [_launch(0, 1), kernel(1, 3), _launch(2, 5), kernel(5, 8), _launch(9, 10)],
    [kernel(1, 3), kernel(5, 8), Event(FORWARD, DEVICE_SPAN, 1, 7, 7)],
    [kernel(0, 3), kernel(0, 5, tid=8), kernel(6, 7)],
]


def _draw_device(rng: Random) -> Case:
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


_register("a2.4", IDLE_EDGES, draw(_draw_device), IDLE_MISTAKES)
