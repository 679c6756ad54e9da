-- In which ops does the host spend a decode step, and how much of the step is in no op at all (Python, the profiler)?
-- Beside: no table, the post does not ask. Each op counts without the ops it calls, so the rows add up to the step.
-- All steps of the first step's thread.
WITH every_step AS (
  SELECT id, pid, tid, ts, ts + dur AS end_ts, dur
  FROM slice WHERE cat = 'user_annotation' AND name = 'roseinfer.decode_step_sessions.total'
), step AS (
  SELECT * FROM every_step SEMI JOIN (FROM every_step ORDER BY ts, id LIMIT 1) USING (pid, tid)
), op AS (
  SELECT slice.id, name, slice.ts, slice.ts + slice.dur AS end_ts, slice.dur
  FROM slice ASOF JOIN step ON slice.pid = step.pid AND slice.tid = step.tid AND slice.ts >= step.ts
  WHERE cat = 'cpu_op' AND slice.ts < step.end_ts
), edge AS (  -- where an op starts and ends; what ends as another starts is over, but not before its own start
  SELECT id, ts AS moment, id AS place, 1 AS change FROM op
  UNION ALL
  SELECT id, end_ts, IF(end_ts > ts, -1, id + 0.5), -1 FROM op
), nested AS (
  SELECT id, change, SUM(change) OVER (ORDER BY moment, place ROWS UNBOUNDED PRECEDING) AS depth FROM edge
), opened AS (
  SELECT op.*, depth FROM op JOIN nested USING (id) WHERE change = 1
), called AS (  -- the caller: the last op before, in the order of ids, that is one level further out
  SELECT o.id, SUM(i.dur) AS dur FROM opened i ASOF JOIN opened o ON o.depth = i.depth - 1 AND i.id > o.id GROUP BY o.id
), line AS (
  SELECT name, COUNT(*) AS calls, SUM(op.dur - COALESCE(called.dur, 0)) AS dur
  FROM op LEFT JOIN called USING (id) GROUP BY name
), total AS (
  SELECT COUNT(*) AS n, SUM(dur) AS dur FROM step
)
SELECT name AS op, calls / n AS calls_per_step, line.dur/1e6 / n AS self_ms_per_step, line.dur / total.dur AS share
FROM line, total
UNION ALL
SELECT '(no op)', NULL, (total.dur - COALESCE((SELECT SUM(dur) FROM line), 0))/1e6 / n,
  (total.dur - COALESCE((SELECT SUM(dur) FROM line), 0)) / total.dur
FROM total WHERE n > 0
ORDER BY self_ms_per_step DESC, op
