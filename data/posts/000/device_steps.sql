-- How many launches does each decode step make, how long is the device busy with them, and how long idle between them?
-- Beside: no table; the post shows the gaps only in a picture. Work belongs to the step that launched it, whenever it
-- ran. idle_ms is the time without work on any stream before the step's work, from the work of earlier steps on.
WITH step AS (
  SELECT ROW_NUMBER() OVER (ORDER BY ts, id) AS step, pid, tid, ts, ts + dur AS end_ts, dur
  FROM slice WHERE cat = 'user_annotation' AND name = 'roseinfer.decode_step_sessions.total'
), launch AS (
  SELECT DISTINCT step.step, slice.args->>'correlation' AS correlation
  FROM slice ASOF JOIN step ON slice.pid = step.pid AND slice.tid = step.tid AND slice.ts >= step.ts
  WHERE cat IN ('cuda_runtime', 'cuda_driver') AND slice.ts < step.end_ts
), work AS (
  SELECT step, correlation, cat, slice.id, ts, ts + dur AS end_ts
  FROM slice JOIN launch ON launch.correlation = slice.args->>'correlation'
  WHERE cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')
), ordered AS (  -- busy_until: the end of whatever started before, on any stream
  SELECT *, MAX(end_ts) OVER (ORDER BY ts, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS busy_until FROM work
), device AS (
  SELECT step, COUNT(DISTINCT correlation) AS launches,
    COUNT(*) FILTER (WHERE cat = 'kernel') AS kernels, COUNT(*) FILTER (WHERE cat <> 'kernel') AS copies,
    SUM(GREATEST(end_ts - GREATEST(ts, COALESCE(busy_until, ts)), 0)) AS busy,
    SUM(GREATEST(ts - busy_until, 0)) AS idle, MAX(GREATEST(ts - busy_until, 0)) AS longest_gap
  FROM ordered GROUP BY step
)
SELECT step, step.dur/1e6 AS host_ms, COALESCE(launches, 0) AS launches, COALESCE(kernels, 0) AS kernels,
  COALESCE(copies, 0) AS copies_and_fills, busy/1e6 AS busy_ms, idle/1e6 AS idle_ms, longest_gap/1e3 AS longest_gap_us
FROM step LEFT JOIN device USING (step)
ORDER BY step
