"""Checkers of a2: queries, judged by their results on small traces that are drawn, with the edges on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw
from ..exercises.exercise import register
from .events import (
    COPY,
    DEVICE_SPAN,
    FILL,
    FORWARD,
    KERNEL,
    Event,
    Events,
    described,
    draw_host,
    in_order,
    in_quarters,
    kernel,
    many_ops,
    op,
    span,
)
from .query_bench import explain_rows, run_query

Mistakes = Mapping[str, Mapping[str, str]]  # what is said about a query -> the changes that make it of the solution


def _register(
    exercise_id: str,
    edges: Iterable[Events],
    mistakes: Mistakes,
    make: Callable[[Random], Events] = draw_host,
    is_ordered: bool = False,
) -> None:
    """Register a checker. Every second drawn case gets fractions of a microsecond; the first trace is empty."""
    drawn = [events for (events,) in draw(lambda rng: (make(rng),), 60)]
    cases = [[], *map(in_order, edges), *drawn[::2], *map(in_quarters, drawn[1::2])]
    expected = as_solved(exercise_id, mistakes, explain_rows(is_ordered), run_query)
    register(exercise_id, Comparison([(events,) for events in cases], expected, described, run_query))


NOT_ATEN = "an op's name begins with `aten::`, and `cpu_op` has ops of other libraries, too"
IS_OP = "name LIKE 'aten::%'"
UNITS: Mistakes = {"`dur` is in nanoseconds: divide by 1e6": {" / 1e6": ""}}

# a2.1

COUNT_MISTAKES: Mistakes = {
    NOT_ATEN: {IS_OP: "cat = 'cpu_op'"},
    "the name has to begin with `aten::`, not only contain it": {"'aten": "'%aten"},
    "every event is counted, and only ops should be": {f"WHERE {IS_OP}": ""},
    "equal counts are sorted by name from a to z: `DESC` belongs to one column": {"DESC, name": "DESC, name DESC"},
}
COUNT_EDGES = [
    [op("zeros", 0, 2), op("cat", 2, 4)],
    [*(op("cat", ts, ts + 0.5) for ts in range(11)), op("copy_", 11, 12), op("copy_", 12, 13)],
    many_ops(),
]
_register("a2.1", COUNT_EDGES, COUNT_MISTAKES, is_ordered=True)

# a2.2

ON_THREAD, STARTED = "op.tid = span.tid AND ", "op.ts >= span.ts"
IS_FORWARD = f"span.name = '{FORWARD}'"
FIRST_SPAN = {"slice AS span": f"(FROM slice WHERE name = '{FORWARD}' ORDER BY id LIMIT 1) AS span"}
IN_SPAN_MISTAKES: Mistakes = {
    "an op of another thread runs at the same time, and not in this span: compare `tid`": {ON_THREAD: ""},
    "there are several spans of this name, and all of them count": FIRST_SPAN,
    "a start at the span's end is outside: `<`, and BETWEEN takes both ends": {"op.ts < span": "op.ts <= span"},
    "an op that began before the span is not inside, even if it ends in it or later": {
        STARTED: "op.ts + op.dur > span.ts"
    },
    "only spans `roseinfer.model.forward` are asked for": {IS_FORWARD: "span.cat = 'user_annotation'"},
    "all spans of this name count, not only the first, and `tid` has to be compared": {**FIRST_SPAN, ON_THREAD: ""},
    **UNITS,
}
SPAN_EDGES = [
    [span(0, 9), op("cat", 2, 12)],  # which starts in the span, whenever it ends
    [span(0, 9, name=f"{FORWARD}.block"), op("cat", 2, 5)],
    [span(0, 200), *many_ops(since=1)],
]
_register("a2.2", SPAN_EDGES, IN_SPAN_MISTAKES)

# a2.3

OPS = f"SELECT * FROM slice WHERE {IS_OP}"
SELF_MISTAKES: Mistakes = {
    "that is inclusive time: subtract the ops that it calls": {" - COALESCE(called.dur, 0)": ""},
    "an op that a called op calls is in that op's time already, and you subtract it again": {
        "MAX(around.id)": "around.id",
        "GROUP BY op.id, op.dur": "",
    },
    "of the ops around it you take the outermost one, not the innermost: MAX(id), not MIN": {"MAX(": "MIN("},
    "an op that calls nothing has a self time, too: its duration": {"LEFT JOIN": "JOIN"},
    "spans are not subtracted": {OPS: "FROM slice", "GROUP BY name": f"WHERE {IS_OP} GROUP BY name"},
    "ops of other threads are not called by it: compare `tid`": {"around.tid = op.tid AND ": ""},
    **UNITS,
}
SELF_EDGES = [
    [op("linear", 0, 9), op("cat", 2, 5)],
    [op("cat", 0, 9), op("cat", 2, 5)],
    [op(f"op_{depth}", depth, 20 - depth) for depth in range(8)],
    many_ops(),
]
_register("a2.3", SELF_EDGES, SELF_MISTAKES)

# a2.4

WORK, LATEST = "cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')", "UNBOUNDED PRECEDING"
SUM_OF_GAPS = "COALESCE(SUM(ts - busy_until), 0)"
IDLE_MISTAKES: Mistakes = {
    "the piece before it may have ended while a longer one still runs: take the latest end of all before": {
        LATEST: "1 PRECEDING"
    },
    "while one stream waits, another one may work: look at all streams together": {
        "ORDER BY": "PARTITION BY tid ORDER BY"
    },
    "two pieces of work may run at the same time, and their durations must not be added": {
        SUM_OF_GAPS: f"(SELECT COALESCE(MAX(ts + dur) - MIN(ts) - SUM(dur), 0) FROM slice WHERE {WORK})"
    },
    "memory copies and fills are work of the device, too": {WORK: "cat = 'kernel'"},
    "every event counts as work, and only the device's should": {f"WHERE {WORK}": ""},
    **UNITS,
}
IDLE_EDGES = [[kernel(0, 60), *(kernel(2 * n + 1, 2 * n + 2, tid=8) for n in range(25)), kernel(65, 66)]]


def _draw_device(rng: Random) -> Events:
    """Draw work of some streams, maybe with a span of the device, and what the host does beside it."""
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
    # A thread of the host whose number is above those of streams.
    events += [Event("cudaLaunchKernel", "cuda_runtime", ts, 1, 12) for ts in range(0, rng.randint(0, 30), 5)]
    return in_order(events)


_register("a2.4", IDLE_EDGES, IDLE_MISTAKES, _draw_device)
