-- How much of the first gather is allocation and copying, and is there still a cat?
-- Beside: the same rows of gather_after.csv, whose total_ms is inclusive_ms here. zeros calls empty, so inclusive times
-- count it twice; outermost_ms leaves out calls inside another op of this list, so it adds up. Never called: zeros.
WITH span AS (
  SELECT pid, tid, ts, ts + dur AS end_ts
  FROM slice
  WHERE cat = 'user_annotation' AND name = 'roseinfer.decode_step_sessions.build_batched_past'
  ORDER BY ts, id LIMIT 1
), asked AS (
  SELECT UNNEST(
    ['aten::cat', 'aten::zeros', 'aten::zeros_like', 'aten::empty', 'aten::empty_like', 'aten::copy_']
  ) AS name
), op AS (
  SELECT slice.id, name, slice.ts, slice.ts + dur AS end_ts, dur
  FROM slice JOIN span USING (pid, tid) JOIN asked USING (name)
  WHERE cat = 'cpu_op' AND slice.ts >= span.ts AND slice.ts < span.end_ts
), inner_op AS (
  SELECT DISTINCT i.id FROM op i JOIN op o ON o.id < i.id AND i.ts < o.end_ts
)
SELECT name AS op, COUNT(op.id) AS calls, COALESCE(SUM(dur), 0)/1e6 AS inclusive_ms,
  COALESCE(SUM(dur) FILTER (WHERE inner_op.id IS NULL), 0)/1e6 AS outermost_ms
FROM asked LEFT JOIN op USING (name) LEFT JOIN inner_op USING (id)
GROUP BY name
ORDER BY inclusive_ms DESC, name
