"""Notebook a2: wrong queries and functions are told what is wrong, and right ones of any form pass."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from wrong_answers import edited, right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from course.teach.lessona2.events import FORWARD

COUNTS, INSIDE = solution("a2.1"), solution("a2.2")


# a2.1

test_a_wrong_count = wrong_answers(
    "a2.1",
    {
        "sorted as text": (
            edited(COUNTS, ("ORDER BY n DESC", "ORDER BY CAST(n AS VARCHAR) DESC")),
            "the rows are right, their order is not",
        ),
        "a typing error": (
            "SELEC name FROM slice",
            'the database says: Parser Error: syntax error at or near "SELEC", in the line `SELEC name FROM slice`',
        ),
        "a column that is not there": (
            "SELECT nme, COUNT(*) AS n\nFROM slice GROUP BY nme",
            '"nme" not found in FROM clause! Candidate bindings: "name", in the line `FROM slice GROUP BY nme`',
        ),
        "a count without a name": (
            edited(COUNTS, (" AS n", ""), ("ORDER BY n", "ORDER BY COUNT(*)")),
            "your query returns the columns name, count_star(), expected name, n: `AS` names a column",
        ),
        "a column too many": (
            edited(COUNTS, ("SELECT name", "SELECT 1 AS one, name")),
            "your query returns the columns one, name, n, expected name, n: `AS` names a column",
        ),
        "text in double quotes": (
            edited(COUNTS, ("'aten::%'", '"aten::%"')),
            "(text stands in single quotes; double quotes name a column)",
        ),
        "no order where counts are equal": (
            edited(COUNTS, ("DESC, name", "DESC")),
            "their order is not: row 0 is ('aten::zeros', 1), expected ('aten::cat', 1)",
        ),
        "the notebook's LIMIT": (COUNTS + "LIMIT 6", "is missing (6 rows, expected 150)"),
        "two queries": (f"{COUNTS}; {COUNTS}", "query must be one SELECT"),
        "a file": ("SELECT * FROM read_text('/etc/passwd')", "the database says: Permission Error"),
        "a function": (lambda: COUNTS, "expected a query, which is a string of SQL, got function"),
    },
)
test_a_right_count = right_answers(
    "a2.1",
    {
        "columns in the other order": edited(COUNTS, ("name, COUNT(*) AS n", "COUNT(*) AS n, name")),
        "DuckDB's own words": "FROM slice SELECT name, COUNT() AS n WHERE name[:6] = 'aten::' "
        "GROUP BY ALL ORDER BY -n, name",
    },
)


# a2.2

WINDOW = f"""WITH win AS (SELECT ts AS t0, ts + dur AS t1 FROM slice WHERE name = '{FORWARD}' ORDER BY ts LIMIT 1)
SELECT name, SUM(dur) / 1e6 AS ms FROM slice JOIN win ON ts >= win.t0 AND ts < win.t1 AND name LIKE 'aten::%'
GROUP BY name"""
test_a_wrong_time = wrong_answers(
    "a2.2",
    {
        "whole microseconds": (
            edited(INSIDE, ("SUM(op.dur) / 1e6", "SUM(op.dur // 1000) / 1e3")),
            ", 0.008) should not be there",
        ),
        "the window of the notebook": (WINDOW, "all spans of this name count, not only the first, and `tid` has to be"),
        "the notebook's LIMIT": (INSIDE + "LIMIT 6", "is missing (6 rows, expected 150)"),
        "spans whose name only begins so": (
            edited(INSIDE, (f"= '{FORWARD}'", f"LIKE '{FORWARD}%'")),
            "`roseinfer.model.forward.block` (user_annotation) 0..9",
        ),
        "only if it ends inside, too": (
            edited(INSIDE, ("GROUP BY", "AND op.ts + op.dur <= span.ts + span.dur GROUP BY")),
            "`aten::cat` 2..12: the row ('aten::cat', 0.01) is missing",
        ),
    },
)
test_a_right_time = right_answers(
    "a2.2",
    {
        "a semi join": f"""SELECT name, SUM(dur) / 1000000 AS ms FROM slice AS op
            WHERE starts_with(name, 'aten::') AND EXISTS (
              FROM slice AS s WHERE s.name = '{FORWARD}' AND s.tid = op.tid AND op.ts BETWEEN s.ts AND s.ts + s.dur - 1
            ) GROUP BY name""",
        "as of": f"""SELECT op.name, SUM(op.dur) / 1e6 AS ms
            FROM (FROM slice WHERE name LIKE 'aten::%') AS op
            ASOF JOIN (FROM slice WHERE name = '{FORWARD}') AS s ON op.tid = s.tid AND op.ts >= s.ts
            WHERE op.ts < s.ts + s.dur GROUP BY op.name""",
    },
)


# a2.3


def by_depth(events):
    """Subtract what lies one level deeper, which is found by comparing each event with each."""

    def around(event):
        return [other for other in events if other is not event and other.ts <= event.ts and event.end <= other.end]

    times = defaultdict(float)
    for event in events:
        inner = [e for e in events if event in around(e) and len(around(e)) == len(around(event)) + 1]
        times[event.name] += event.dur - sum(e.dur for e in inner)
    return times


def at_most_five_deep(events):
    times, stack = {}, []
    for event in events:
        stack = [other for other in stack if other.end > event.ts][-5:]
        if stack and len(stack) < 5:
            times[stack[-1].name] -= event.dur
        times[event.name] = times.get(event.name, 0) + event.dur
        stack.append(event)
    return times


test_a_wrong_self_time = wrong_answers(
    "a2.3",
    {
        "durations": (
            lambda events: [event.dur for event in events],
            "in an empty trace: ",
        ),
        "at most five deep": (at_most_five_deep, ": you return {'roseinfer.model.forward': 1, "),
        "a name has one event": (
            lambda events: {event.name: by_depth([event])[event.name] for event in events},
            "in the trace (in µs) tid 1: ",
        ),
    },
)


def from_the_inside(events):
    """Take the shortest events first: each gives its time to its name, and takes it from the shortest around it."""
    own = {id(event): event.dur for event in events}
    for event in events:
        around = [other for other in events if other.ts <= event.ts and event.end <= other.end and other is not event]
        if around:
            own[id(min(around, key=lambda other: other.dur))] -= event.dur
    return {name: sum(own[id(e)] for e in events if e.name == name) for name in {event.name for event in events}}


test_a_right_self_time = right_answers("a2.3", {"by depth": by_depth, "from the inside": from_the_inside})


# a2.4


def by_moments(work):
    """Count the moments at which a piece ends and none runs, but the last one."""
    ends = sorted({p.end for p in work if not any(other.ts <= p.end < other.end for other in work)})[:-1]
    idle = sum(min(p.ts for p in work if p.ts > end) - end for end in ends)
    return [len(ends), idle]


test_a_wrong_gap = wrong_answers(
    "a2.4",
    {
        "the latest end of twenty pieces": (
            lambda work: (
                sum(p.ts > max(q.end for q in work[max(0, i - 20) : i]) for i, p in enumerate(work) if i),
                by_moments(work)[1],
            ),
            "... (25 events)",
        ),
        "the sum alone": (lambda work: by_moments(work)[1], "expected (gaps, idle), got"),
    },
)


test_a_right_gap = right_answers(
    "a2.4", {"ends after which nothing runs": by_moments, "an array": lambda work: np.array(by_moments(work))}
)
