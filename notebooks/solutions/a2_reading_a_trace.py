# --- a2.1
ops_by_count = """
SELECT name, COUNT(*) AS n
FROM slice
WHERE name LIKE 'aten::%'
GROUP BY name
ORDER BY n DESC, name
"""


# --- a2.2
ops_in_forward = """
SELECT op.name, SUM(op.dur) / 1e6 AS ms
FROM slice AS op
JOIN slice AS span ON op.tid = span.tid AND op.ts >= span.ts AND op.ts < span.ts + span.dur
WHERE op.name LIKE 'aten::%' AND span.name = 'roseinfer.model.forward'
GROUP BY op.name
"""


# --- a2.3
self_times = """
WITH op AS (
  SELECT * FROM slice WHERE name LIKE 'aten::%'
), call AS (
  SELECT op.id, op.dur, MAX(around.id) AS caller
  FROM op JOIN op AS around ON around.tid = op.tid AND around.id < op.id AND op.ts < around.ts + around.dur
  GROUP BY op.id, op.dur
), called AS (
  SELECT caller AS id, SUM(dur) AS dur FROM call GROUP BY caller
)
SELECT name, SUM(op.dur - COALESCE(called.dur, 0)) / 1e6 AS self_ms
FROM op LEFT JOIN called ON called.id = op.id
GROUP BY name
"""


# --- a2.4
idle_gaps = """
WITH work AS (
  SELECT ts, MAX(ts + dur) OVER (
    ORDER BY ts, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS busy_until
  FROM slice
  WHERE cat IN ('kernel', 'gpu_memcpy', 'gpu_memset')
)
SELECT COUNT(*) AS gaps, COALESCE(SUM(ts - busy_until), 0) / 1e6 AS idle_ms
FROM work
WHERE ts > busy_until
"""
