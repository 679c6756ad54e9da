"""Notebook a2: wrong queries are told what is wrong, right ones of any form pass, and pictures say what is so."""

from __future__ import annotations

from wrong_answers import edited, right_answers, wrong_answers

from course.teach.exercises.solutions import parse_solutions
from course.teach.lessona2.events import FORWARD
from roseinfer.paths import ROOT

SOLUTIONS = parse_solutions((ROOT / "notebooks/solutions/a2_reading_a_trace.py").read_text(encoding="utf-8"))
COUNTS, INSIDE, SELF, IDLE = (source.split('"""')[1] for source in SOLUTIONS.values())


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
        "no group": ("SELECT name, COUNT(*) AS n FROM slice", 'column "name" must appear in the GROUP BY clause'),
        "a count without a name": (
            edited(COUNTS, (" AS n", ""), ("ORDER BY n", "ORDER BY COUNT(*)")),
            "your query returns the columns `name`, `count_star()`, expected the columns `name`, `n`: `AS` names a",
        ),
        "names alone": ("SELECT DISTINCT name FROM slice", "your query returns the column `name`, expected"),
        "a column too many": (
            edited(COUNTS, ("SELECT name", "SELECT 1 AS one, name")),
            "the columns `one`, `name`, `n`, expected the columns `name`, `n`: one column too many: `one`",
        ),
        "two columns too many": (
            edited(COUNTS, ("SELECT name", "SELECT 1 AS one, 2 AS two, name")),
            "2 columns too many: `one`, `two`",
        ),
        "text in double quotes": (
            edited(COUNTS, ("'aten::%'", '"aten::%"')),
            "(text stands in single quotes; double quotes name a column)",
        ),
        "no order": (
            edited(COUNTS, ("ORDER BY n DESC, name", "ORDER BY hash(name)")),
            "the rows are right, their order is not: you return ",
        ),
        "no order where counts are equal": (
            edited(COUNTS, ("DESC, name", "DESC")),
            "the rows are right, their order is not: you return aten::zeros 1, aten::cat 1, expected aten::cat 1, ",
        ),
        "one row too few": (COUNTS + " OFFSET 1", "`aten::cat` 0..2: the row name=aten::cat, n=1 is missing"),
        "a row for each op": (
            edited(COUNTS, ("GROUP BY name", "GROUP BY name, id")),
            "there are several rows for aten",
        ),
        "names in small pieces": (
            edited(COUNTS, ("'aten::%'", "'aten::c%'")),
            "the row name=aten::zeros, n=1 is missing",
        ),
        "the notebook's LIMIT": (COUNTS + "LIMIT 6", "LIMIT leaves out rows: every op is asked for"),
        "a larger LIMIT": (COUNTS + "limit 10;", "n=1 is missing: LIMIT leaves out rows: every op is asked for"),
        "a LIMIT that is not all": (edited(COUNTS, (" DESC", "")) + "LIMIT 6", "the rows are right, their order"),
        "a value of another type": (edited(COUNTS, ("COUNT(*)", "CAST(COUNT(*) AS VARCHAR)")), "n is 1, expected 1"),
        "two queries": (f"{COUNTS}; {COUNTS}", "query must be one SELECT"),
        "a file": ("SELECT * FROM read_text('/etc/passwd')", "the database says: Permission Error"),
        "writing": ("DELETE FROM every_trace", "query must be one SELECT"),
        "a number": (3, "expected a query, which is a string of SQL, got int"),
        "a function without a return": (lambda: None, "a string of SQL, got NoneType"),
        "an empty text": ("\n", "expected a query, got an empty string"),
    },
)
test_a_right_count = right_answers(
    "a2.1",
    {
        "a function": lambda: COUNTS,
        "a LIMIT that lets all rows through": COUNTS + "LIMIT 1000",
        "columns in the other order": edited(COUNTS, ("name, COUNT(*) AS n", "COUNT(*) AS n, name")),
        "by a window": """SELECT DISTINCT name, COUNT(*) OVER (PARTITION BY name) AS n FROM slice
            WHERE starts_with(name, 'aten::') ORDER BY n DESC, name ASC;""",
        "by numbers of columns": """SELECT name, SUM(1) AS N FROM slice WHERE regexp_matches(name, '^aten::')
            GROUP BY 1 ORDER BY 2 DESC, 1""",
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
        "whole microseconds": (edited(INSIDE, ("SUM(op.dur) / 1e6", "SUM(op.dur // 1000) / 1e3")), ": ms is 0"),
        "an ambiguous name": (
            edited(INSIDE, ("op.name, SUM", "name, SUM")),
            'Ambiguous reference to column name "name"',
        ),
        "every pair": (
            edited(INSIDE, ("ON op.tid = span.tid AND op.ts >= span.ts AND op.ts < span.ts + span.dur", "ON true")),
            "the row name=aten::cat, ms=0.003 should not be there",
        ),
        "without the thread": (edited(INSIDE, ("op.tid = span.tid AND ", "")), "compare `tid`"),
        "between": (
            edited(
                INSIDE,
                (
                    " AND op.ts >= span.ts AND op.ts < span.ts + span.dur",
                    " AND op.ts BETWEEN span.ts AND span.ts + span.dur",
                ),
            ),
            "and BETWEEN takes both ends",
        ),
        "in microseconds": (
            edited(INSIDE, ("1e6", "1e3")),
            "tid 1: `roseinfer.model.forward` (user_annotation) 0..9, `aten::cat` 2..5: aten::cat: ms is 3, expected "
            "0.003: those are microseconds",
        ),
        "the span's own time": (
            edited(INSIDE, ("SUM(op.dur)", "SUM(span.dur)")),
            "aten::cat: ms is 0.009, expected 0.003: you add up the durations of the spans",
        ),
        "every event": (
            edited(INSIDE, ("op.name LIKE 'aten::%' AND ", "")),
            "only ops are asked for, and you have every event that starts in the span",
        ),
        "the window of the notebook": (WINDOW, "all spans of this name count, not only the first, and `tid` has to be"),
        "a window for each span": (edited(WINDOW, (" LIMIT 1", "")), "compare `tid`"),
        "a window and every event": (
            edited(WINDOW, (" LIMIT 1", ""), (" AND name LIKE 'aten::%'", "")),
            "only ops are asked for, and of this thread",
        ),
        "rounded": (edited(INSIDE, ("SUM(op.dur) / 1e6", "ROUND(SUM(op.dur) / 1e6, 2)")), "ms is 0, expected 0.003"),
        "a sum for all": (
            "SELECT 'aten::cat' AS name, SUM(dur) / 1e6 AS ms FROM slice WHERE name LIKE 'aten::%'",
            "tid 1: `aten::cat` 2..5: the row name=aten::cat, ms=0.003 should not be there",
        ),
        "the notebook's LIMIT": (INSIDE + "LIMIT 6", "LIMIT leaves out rows: every op is asked for"),
        "every span whose name ends so": (
            edited(INSIDE, (f"span.name = '{FORWARD}'", "span.name LIKE '%.forward'")),
            "only spans `roseinfer.model.forward` are asked for",
        ),
        "distinct durations": (
            edited(INSIDE, ("SUM(op.dur)", "SUM(DISTINCT op.dur)")),
            "cat: ms is 0.002, expected 0.004",
        ),
        "a row for each span": (
            edited(INSIDE, ("GROUP BY op.name", "GROUP BY op.name, span.id")),
            "several rows for aten::",
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
        "the op ends inside, too": edited(INSIDE, ("GROUP BY", "AND op.ts + op.dur <= span.ts + span.dur GROUP BY")),
        "a cross join": f"""WITH f AS (SELECT tid, ts, ts + dur AS stop FROM slice WHERE name = '{FORWARD}')
            SELECT 0.000001 * SUM(dur) AS ms, name FROM slice, f
            WHERE cat = 'cpu_op' AND name LIKE 'aten::%' AND slice.tid = f.tid AND slice.ts >= f.ts AND slice.ts < stop
            GROUP BY name ORDER BY ms""",
        "as of": f"""SELECT op.name, SUM(op.dur) / 1e6 AS ms
            FROM (FROM slice WHERE name LIKE 'aten::%') AS op
            ASOF JOIN (FROM slice WHERE name = '{FORWARD}') AS s ON op.tid = s.tid AND op.ts >= s.ts
            WHERE op.ts < s.ts + s.dur GROUP BY op.name""",
    },
)


# a2.3

test_a_wrong_self_time = wrong_answers(
    "a2.3",
    {
        "whole microseconds": (
            edited(
                SELF,
                (
                    "SUM(op.dur - COALESCE(called.dur, 0)) / 1e6",
                    "SUM((op.dur - COALESCE(called.dur, 0)) // 1000) / 1e3",
                ),
            ),
            "self_ms is ",
        ),
        "inclusive": (
            "SELECT name, SUM(dur) / 1e6 AS self_ms FROM slice WHERE name LIKE 'aten::%' GROUP BY name",
            "subtract",
        ),
        "all that is inside": (
            edited(SELF, ("MAX(around.id)", "around.id"), ("GROUP BY op.id, op.dur", "")),
            "aten::linear: self_ms is -0.001, expected 0.002: an op that a called op calls is in that op's time",
        ),
        "the outermost caller": (
            edited(SELF, ("MAX(around.id)", "MIN(around.id)")),
            "aten::cat: self_ms is 0.007, expected 0.004: of the ops around it you take the outermost one",
        ),
        "the notebook's LIMIT": (SELF + "LIMIT 6", "LIMIT leaves out rows: every op is asked for"),
        "no row for a self time of 0": (
            SELF + "HAVING SUM(op.dur - COALESCE(called.dur, 0)) > 0",
            "self_ms=0 is missing: an op whose self time is 0 has a row, too",
        ),
        "an inner join": (edited(SELF, ("LEFT JOIN", "JOIN")), "the row name=aten::cat, self_ms=0.005 is missing"),
        "no COALESCE": (
            edited(SELF, ("COALESCE(called.dur, 0)", "called.dur")),
            "aten::cat: self_ms is NULL, expected 0.005: a LEFT JOIN (or SUM over no rows) gives NULL; COALESCE",
        ),
        "any thread": (edited(SELF, ("around.tid = op.tid AND ", "")), "compare `tid`"),
        "with spans": (
            edited(SELF, ("SELECT * FROM slice WHERE name LIKE 'aten::%'", "FROM slice")),
            "should not be there",
        ),
        "an op in itself": (
            edited(SELF, ("around.id < op.id", "around.id <= op.id")),
            "aten::cat: self_ms is 0, expected 0.005",
        ),
        "what only touches": (
            edited(SELF, ("op.ts < around", "op.ts <= around")),
            "aten::cat: self_ms is 0.001, expected 0.005",
        ),
        "by name": (
            edited(SELF, ("around.id < op.id", "around.id < op.id AND around.name <> op.name")),
            "`aten::cat` 0..9, `aten::cat` 2..5: aten::cat: self_ms is 0.012, expected 0.009",
        ),
        "a mean": (
            edited(SELF, ("SUM(op.dur - COALESCE(called.dur, 0))", "AVG(op.dur - COALESCE(called.dur, 0))")),
            "aten::cat: self_ms is 0.003, expected 0.006",
        ),
    },
)
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
BY_QUARTERS = """
WITH op AS (SELECT * FROM slice WHERE name LIKE 'aten::%'),
moment AS (SELECT id, tid, name, UNNEST(range(ts, ts + dur, 250)) AS moment FROM op),
innermost AS (SELECT arg_max(name, id) AS name FROM moment GROUP BY tid, moment)
SELECT name, SUM(n) / 4e3 AS self_ms
FROM (SELECT name, COUNT(*) AS n FROM innermost GROUP BY name UNION ALL SELECT name, 0 FROM op) GROUP BY name
"""
test_a_right_self_time = right_answers(
    "a2.3",
    {
        "by depth": BY_DEPTH,
        "each op's time taken from its caller's": BY_PARTS,
        "the innermost op of each quarter of a microsecond": BY_QUARTERS,
        "callers by time": edited(
            SELF, ("around.id < op.id AND op.ts < around.ts + around.dur",
                   "around.id <> op.id AND around.ts <= op.ts AND op.ts + op.dur <= around.ts + around.dur"),
        ),
    },
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
        "whole microseconds": (
            edited(IDLE, ("SUM(ts - busy_until), 0) / 1e6", "SUM((ts - busy_until) // 1000), 0) / 1e3")),
            "idle_ms is",
        ),
        "the row before": (
            edited(
                IDLE,
                ("MAX(ts + dur) OVER (", "LAG(ts + dur) OVER ("),
                ("ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING", ""),
            ),
            "take the latest end of all before",
        ),
        "all rows": (edited(IDLE, ("WHERE ts > busy_until", "")), "gaps is 1, expected 0"),
        "its own end": (edited(IDLE, ("1 PRECEDING", "CURRENT ROW")), "gaps is 0, expected 1"),
        "by stream": (
            edited(IDLE, ("ORDER BY ts, id", "PARTITION BY tid ORDER BY ts, id")),
            "look at all streams together",
        ),
        "no sum": (edited(IDLE, ("COALESCE(SUM(ts - busy_until), 0)", "SUM(ts - busy_until)")), "NULL; COALESCE"),
        "kernels alone": (
            edited(IDLE, ("IN ('kernel', 'gpu_memcpy', 'gpu_memset')", "= 'kernel'")),
            "memory copies and fills are work",
        ),
        "no fills": (edited(IDLE, (", 'gpu_memset'", "")), "a fill (`gpu_memset`) is work"),
        "no copies": (edited(IDLE, ("'gpu_memcpy', ", "")), "a memory copy (`gpu_memcpy`) is work"),
        "pieces less one": (BY_ISLANDS, "in an empty trace: gaps is -1, expected 0: without work there is no gap"),
        "no sum of islands": (
            edited(BY_ISLANDS, ("COUNT(*) - 1", "GREATEST(COUNT(*) - 1, 0)")),
            "in an empty trace: idle_ms is NULL",
        ),
        "the host's ops": (edited(IDLE, ("('kernel',", "('kernel', 'cpu_op',")), "ops of the host are not"),
        "everything": (edited(IDLE, (WORK, "")), "and only the device's should"),
        "no gap at all": (edited(IDLE, ("ts > busy_until", "ts >= busy_until")), "leaves no gap"),
        "a row for each gap": (
            "SELECT 0 AS gaps, 0 AS idle_ms UNION ALL SELECT 0, 0 FROM slice",
            "your query returns 2 rows, expected 1",
        ),
        "no row": (IDLE + " AND false GROUP BY ts", "your query returns 0 rows, expected 1"),
        "in seconds": (edited(IDLE, ("1e6", "1e9")), "idle_ms is 2e-06, expected 0.002"),
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
BY_DEPTH_OF_WORK = """
WITH edge AS (
  SELECT ts AS moment, 1 AS change FROM slice WHERE cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')
  UNION ALL SELECT ts + dur, -1 FROM slice WHERE cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')
), busy AS (
  SELECT moment, SUM(SUM(change)) OVER (ORDER BY moment) AS running,
    LEAD(moment) OVER (ORDER BY moment) AS until FROM edge GROUP BY moment
)
SELECT SUM(until - moment) FILTER (WHERE running = 0 AND until IS NOT NULL) / 1e6 AS ms,
  COUNT(*) FILTER (WHERE running = 0 AND until IS NOT NULL) AS n FROM busy
"""
test_a_right_gap = right_answers(
    "a2.4",
    {
        "ends after which nothing runs": BY_MOMENTS,
        "how many pieces run": f"SELECT n AS gaps, COALESCE(ms, 0) AS idle_ms FROM ({BY_DEPTH_OF_WORK})",
        "sums of what may be 0": edited(
            IDLE,
            ("COUNT(*) AS gaps", "COUNT(*) FILTER (ts > busy_until) AS gaps"),
            ("SUM(ts - busy_until)", "SUM(GREATEST(ts - busy_until, 0))"),
            ("FROM work\nWHERE ts > busy_until", "FROM work"),
        ),
        "the columns turned": f"SELECT idle_ms, gaps FROM ({IDLE})",
        "islands of work": edited(
            BY_ISLANDS,
            ("COUNT(*) - 1", "GREATEST(COUNT(*) - 1, 0)"),
            ("(MAX(stop) - MIN(start) - SUM(stop - start))", "COALESCE(MAX(stop) - MIN(start) - SUM(stop - start), 0)"),
        ),
    },
)
