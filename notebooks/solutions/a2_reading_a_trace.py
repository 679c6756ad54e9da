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
def self_times(events):
    times = {}
    open_events = []  # those that have not ended, the innermost last
    for event in events:
        while open_events and open_events[-1].end <= event.ts:
            open_events.pop()
        if open_events:
            times[open_events[-1].name] -= event.dur
        times[event.name] = times.get(event.name, 0) + event.dur
        open_events.append(event)
    return times


# --- a2.4
def idle_gaps(work):
    gaps, idle = 0, 0
    busy_until = work[0].ts
    for piece in work:
        if piece.ts > busy_until:
            gaps += 1
            idle += piece.ts - busy_until
        busy_until = max(busy_until, piece.end)
    return gaps, idle
