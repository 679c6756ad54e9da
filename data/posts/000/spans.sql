-- How long do the labelled spans take, on the host and on the device, in all, each, and a decode step?
-- Beside: spans.csv (its cat is side here). total_ms is inclusive, as there: host spans nest, so total holds the other
-- three. self_ms leaves out the spans inside, so on one side it adds up.
WITH span AS (
  SELECT id, IF(cat = 'user_annotation', 'host', 'device') AS side, pid, tid, name, ts, ts + dur AS end_ts, dur
  FROM slice
  WHERE cat IN ('user_annotation', 'gpu_user_annotation') AND starts_with(name, 'roseinfer.')
), parent AS (  -- ids are in time order, an outer span first: the last one that is still open
  SELECT i.id, MAX(o.id) AS parent_id
  FROM span i JOIN span o ON o.side = i.side AND o.pid = i.pid AND o.tid = i.tid AND o.id < i.id AND i.ts < o.end_ts
  GROUP BY i.id
), inside AS (
  SELECT parent_id AS id, SUM(dur) AS dur FROM parent JOIN span USING (id) GROUP BY parent_id
), steps AS (
  SELECT COUNT(*) AS n FROM span WHERE side = 'host' AND name = 'roseinfer.decode_step_sessions.total'
)
SELECT side, name AS span, COUNT(*) AS calls, SUM(span.dur)/1e6 AS total_ms, AVG(span.dur)/1e6 AS avg_ms,
  SUM(span.dur)/1e6 / ANY_VALUE(NULLIF(steps.n, 0)) AS ms_per_step,
  SUM(span.dur - COALESCE(inside.dur, 0))/1e6 AS self_ms
FROM span LEFT JOIN inside USING (id), steps
GROUP BY side, name
ORDER BY side DESC, total_ms DESC, name
