"""Checkers of a2: two queries and two functions, on small traces that are drawn, with the edges on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from ..exercises.as_solved import Mistake, as_solved, as_solved_by_name
from ..exercises.drawn import Comparison, draw, part
from ..exercises.exercise import register
from ..exercises.solutions import solution
from .events import (
    COPY,
    FILL,
    FORWARD,
    KERNEL,
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


def _register(exercise_id: str, edges: Iterable[Events], mistakes: Mistakes, is_ordered: bool = False) -> None:
    """Register a query's checker. Every second drawn case gets fractions of a microsecond; the first trace is empty."""
    drawn = [events for (events,) in draw(lambda rng: (draw_host(rng),), 60)]
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

TAKEN = "times[open_events[-1].name] -= event.dur"
SELF_MISTAKES = {
    "that is inclusive time: subtract the events directly inside": {TAKEN: "pass"},
    "an event inside an inner one is in that one's time already, and you subtract it again": {
        f"if open_events:\n            {TAKEN}": "for each in open_events:\n            times[each.name] -= event.dur"
    },
    "you take the time from the outermost event around it, and the innermost is asked for": {
        TAKEN: "times[open_events[0].name] -= event.dur"
    },
    "several events may have ended when the next one starts: close them all": {"while open": "if open"},
    "an event that starts when another ends is not inside it": {"end <= event.ts": "end < event.ts"},
    "several events have the same name: add them up": {"times.get(event.name, 0) + event.dur": "event.dur"},
}
SELF_EDGES = [
    [op("linear", 0, 9), op("cat", 2, 5)],
    [op("cat", 0, 9), op("cat", 2, 5)],
]
SELF_DRAWN = draw(lambda rng: ([event for event in draw_host(rng) if event.tid == 1],), 60)
register(
    "a2.3",
    Comparison([([],), *((each,) for each in SELF_EDGES), *SELF_DRAWN], as_solved("a2.3", SELF_MISTAKES), described),
)


# a2.4


def _span_less_work(work: Events) -> float:
    return max(piece.end for piece in work) - work[0].ts - sum(piece.dur for piece in work)


def _each_stream_alone(work: Events) -> tuple[float, ...]:
    streams = [[piece for piece in work if piece.tid == tid] for tid in {piece.tid for piece in work}]
    return tuple(map(sum, zip(*map(solution("a2.4"), streams), strict=True)))


LATEST = "max(busy_until, piece.end)"
ENDED = "the piece before it may have ended while a longer one still runs: keep the latest end of all before"
STREAMS = "while one stream waits, another one may work: look at all streams together"
BEGIN = "the time before the first piece is not a gap"
IDLE_MISTAKES: dict[str, dict[str, Mistake]] = {
    "gaps": {
        ENDED: {LATEST: "piece.end"},
        STREAMS: part(_each_stream_alone, 0),
        BEGIN: {"work[0].ts": "0"},
        "no time lies between a piece and one that starts as it ends": {"ts > busy": "ts >= busy"},
    },
    "idle": {
        ENDED: {LATEST: "piece.end"},
        STREAMS: part(_each_stream_alone, 1),
        BEGIN: {"work[0].ts": "0"},
        "two pieces of work may run at the same time, and their durations must not be added": _span_less_work,
    },
}
IDLE_EDGES = [[kernel(0, 60), *(kernel(2 * n + 1, 2 * n + 2, tid=8) for n in range(25)), kernel(65, 66)]]


def _draw_device(rng: Random) -> tuple[Events]:
    """Draw the work of some streams."""
    events: Events = []
    for tid in range(7, 7 + rng.randint(1, 3)):
        now = rng.randint(0, 6)
        for _ in range(rng.randint(1, 4)):
            dur = rng.choice((1, 2, 3, rng.randint(4, 15)))
            events.append(kernel(now, now + dur, tid, rng.choice((KERNEL, KERNEL, COPY, FILL))))
            now += dur + rng.choice((0, 0, 1, rng.randint(2, 9)))
    return (in_order(events),)


register(
    "a2.4",
    Comparison(
        [*((each,) for each in map(in_order, IDLE_EDGES)), *draw(_draw_device, 60)],
        as_solved_by_name("a2.4", IDLE_MISTAKES),
        described,
    ),
)
