-- Which aten ops does the first gather (build_batched_past) start, how often, and what do they cost the host?
-- Beside: gather_after.csv, whose total_ms and avg_us are inclusive_ms and inclusive_us here: an op's time
-- holds that of the ops it calls, which have rows of their own. self_ms leaves them out, so it adds up. Unlike the
-- post's query this one looks at the span's own thread only.
WITH span AS (
  SELECT pid, tid, ts, ts + dur AS end_ts
  FROM slice
  WHERE cat = 'user_annotation' AND name = 'roseinfer.decode_step_sessions.build_batched_past'
  ORDER BY ts, id LIMIT 1
), op AS (
  SELECT slice.id, name, slice.ts, slice.ts + dur AS end_ts, dur
  FROM slice JOIN span USING (pid, tid)
  WHERE cat = 'cpu_op' AND slice.ts >= span.ts AND slice.ts < span.end_ts
), caller AS (  -- ids are in time order, an outer op first: the last one that is still open
  SELECT i.id, MAX(o.id) AS caller_id FROM op i JOIN op o ON o.id < i.id AND i.ts < o.end_ts GROUP BY i.id
), called AS (
  SELECT caller_id AS id, SUM(dur) AS dur FROM caller JOIN op USING (id) GROUP BY caller_id
)
SELECT name AS op, COUNT(*) AS calls, SUM(op.dur)/1e6 AS inclusive_ms, AVG(op.dur)/1e3 AS inclusive_us,
  SUM(op.dur - COALESCE(called.dur, 0))/1e6 AS self_ms
FROM op LEFT JOIN called USING (id)
WHERE starts_with(name, 'aten::')
GROUP BY name
ORDER BY self_ms DESC, name
