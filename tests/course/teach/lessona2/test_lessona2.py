"""Notebook a2: wrong queries are told what is wrong, right ones of any form pass, and pictures say what is so."""

from __future__ import annotations

from wrong_answers import edited, right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from course.teach.lessona2.events import FORWARD

COUNTS, INSIDE, SELF, IDLE = (solution(f"a2.{number}") for number in range(1, 5))


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

BY_DEPTH = """
WITH op AS (SELECT id, tid, ts, dur, ts + dur AS stop, name FROM slice WHERE starts_with(name, 'aten::')),
deep AS (
  SELECT *, (SELECT COUNT(*) FROM op o WHERE o.tid = op.tid AND o.id < op.id AND o.stop > op.ts) AS depth FROM op
)
SELECT name, SUM(dur - COALESCE((
  SELECT SUM(c.dur) FROM deep c
  WHERE c.tid = d.tid AND c.depth = d.depth + 1 AND c.id > d.id AND c.ts >= d.ts AND c.stop <= d.stop
), 0)) / 1e6 AS self_ms
FROM deep d GROUP BY name
"""
test_a_wrong_self_time = wrong_answers(
    "a2.3",
    {
        "the notebook's LIMIT": (SELF + "LIMIT 6", "is missing (6 rows, expected 8)"),
        "no COALESCE": (
            edited(SELF, ("COALESCE(called.dur, 0)", "called.dur")),
            "('aten::cat', None) should not be there: a LEFT JOIN (or SUM over no rows) gives",
        ),
        "at most five ops deep": (
            edited(BY_DEPTH, ("(SELECT COUNT(*)", "(SELECT LEAST(COUNT(*), 5)")),
            ") should not be there",
        ),
        "by name": (
            edited(SELF, ("around.id < op.id", "around.id < op.id AND around.name <> op.name")),
            "the row ('aten::cat', 0.009) is missing, and the row ('aten::cat', 0.012) should not be there",
        ),
    },
)
BY_PARTS = """
WITH op AS (SELECT id, tid, ts, dur, ts + dur AS stop, name FROM slice WHERE name LIKE 'aten::%'),
signed AS (
  SELECT name, dur FROM op
  UNION ALL
  SELECT (SELECT arg_max(o.name, o.id) FROM op o WHERE o.tid = c.tid AND o.id < c.id AND o.stop >= c.stop), -dur
  FROM op c
)
SELECT SUM(dur) / 1e6 AS self_ms, name FROM signed WHERE name IS NOT NULL GROUP BY name
"""
test_a_right_self_time = right_answers(
    "a2.3",
    {
        "by depth": BY_DEPTH,
        "each op's time taken from its caller's": BY_PARTS
    }
)  # fmt: skip


# a2.4

WORK = "WHERE cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')"
BY_ISLANDS = f"""
WITH work AS (
  SELECT id, ts, ts + dur AS stop,
    MAX(ts + dur) OVER (ORDER BY ts, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS busy_until
  FROM slice {WORK}
), numbered AS (
  SELECT ts, stop, COUNT(*) FILTER (busy_until IS NULL OR ts > busy_until) OVER (ORDER BY ts, id) AS island FROM work
), island AS (
  SELECT MIN(ts) AS start, MAX(stop) AS stop FROM numbered GROUP BY island
)
SELECT COUNT(*) - 1 AS gaps, (MAX(stop) - MIN(start) - SUM(stop - start)) / 1e6 AS idle_ms FROM island
"""
test_a_wrong_gap = wrong_answers(
    "a2.4",
    {
        "the latest end of twenty pieces": (
            edited(IDLE, ("UNBOUNDED PRECEDING", "20 PRECEDING")),
            "... (25 events): the row (1, 0.005) is missing, and the row (6, ",
        ),
        "what runs on streams by number": (
            edited(IDLE, (WORK, "WHERE tid >= 7 AND cat <> 'gpu_user_annotation'")),
            "tid 12: `cudaLaunchKernel` (cuda_runtime)",
        ),
        "pieces less one": (
            BY_ISLANDS,
            "in an empty trace: the row (0, 0) is missing, and the row (-1, None) should not be there: a LEFT",
        ),
        "a recursion without an end": (
            f"WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT 1 FROM r) SELECT * FROM ({IDLE}), r",
            "the database says: INTERRUPT Error",
        ),
        "no row": (IDLE + " AND false GROUP BY ts", "the row (0, 0) is missing (0 rows, expected 1)"),
    },
)
BY_MOMENTS = """
WITH work AS (SELECT ts, ts + dur AS stop FROM slice WHERE cat = 'kernel' OR cat LIKE 'gpu\\_mem%' ESCAPE '\\'),
gap AS (
  SELECT DISTINCT stop AS begin, (SELECT MIN(ts) FROM work w WHERE w.ts > work.stop) AS until FROM work
  WHERE NOT EXISTS (FROM work w WHERE w.ts <= work.stop AND w.stop > work.stop)
)
SELECT COUNT(until) AS gaps, COALESCE(SUM(until - begin), 0) / 1e6 AS idle_ms FROM gap
"""
test_a_right_gap = right_answers(
    "a2.4",
    {
        "ends after which nothing runs": BY_MOMENTS,
        "islands of work": edited(
            BY_ISLANDS,
            ("COUNT(*) - 1", "GREATEST(COUNT(*) - 1, 0)"),
            ("(MAX(stop) - MIN(start) - SUM(stop - start))", "COALESCE(MAX(stop) - MIN(start) - SUM(stop - start), 0)"),
        ),
    },
)
