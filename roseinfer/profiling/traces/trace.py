"""Trace: SQL and tables over one torch.profiler trace, ours or anyone's."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import listed, unknown_name

from ..facts import Facts
from .chrome import Slice, as_chrome_trace, complete_slices, read_chrome_trace, write_chrome_trace
from .read_only import lock, result_of

if TYPE_CHECKING:
    import duckdb
    import pandas as pd


METADATA_KEY = "roseinfer"  # where a captured trace keeps its metadata, at the top level of its JSON
HOST_SPAN = "user_annotation"
DEVICE_SPAN = "gpu_user_annotation"
DEVICE_COPY = "gpu_memcpy"
DEVICE_WORK = ("kernel", DEVICE_COPY, "gpu_memset")
BETWEEN_DEVICES = ("HtoD", "DtoH")  # host to device and back, in the name of a DEVICE_COPY
LAUNCHES = ("cuda_runtime", "cuda_driver")
SPAN_PREFIX = "roseinfer."

PROFILED_STEP = "ProfilerStep#"  # and a number: a whole step as torch.profiler marks it
ANY_PROFILED_STEP = f"{PROFILED_STEP}*"  # all of them under one name

# ids are in time order, an enclosing span first, so on one thread p encloses c if p came before c and ends
# after c's start; the last of those is the parent. The steps are the profiler's own marks, else the outermost spans if
# all have one name. Labels side by side have no step around them: then the time is each thread's, from the first one's
# start to the last one's end, and there are as many steps as the most frequent label has spans.
SPANS_SQL = """\
WITH span AS (
  SELECT id, cat, ts, dur, pid, tid, regexp_replace(name, '^ProfilerStep#\\d+$', 'ProfilerStep#*') AS name
  FROM slice
  WHERE starts_with(name, {prefix}) AND cat IN ('user_annotation', 'gpu_user_annotation')
), nested AS (
  SELECT c.*, MAX(p.id) AS parent
  FROM span c LEFT JOIN span p
    ON p.cat = c.cat AND p.pid = c.pid AND p.tid = c.tid AND p.id < c.id AND c.ts < p.ts + p.dur
  GROUP BY ALL
), host AS (
  SELECT * FROM nested WHERE cat = 'user_annotation'
), outermost AS (
  SELECT * FROM host WHERE parent IS NULL
), mark AS (
  SELECT * FROM host WHERE name = 'ProfilerStep#*'
  UNION ALL
  SELECT * FROM outermost
  WHERE (SELECT COUNT(DISTINCT name) FROM outermost) = 1 AND 'ProfilerStep#*' NOT IN (SELECT name FROM host)
), thread AS (
  SELECT MAX(ts + dur) - MIN(ts) AS dur, SUM(dur) AS labelled FROM outermost GROUP BY pid, tid
), label AS (
  SELECT COUNT(*) AS n FROM outermost GROUP BY name
), step AS (
  SELECT COUNT(*) AS n, SUM(dur) AS dur,
    (SELECT COALESCE(SUM(dur), 0) FROM host WHERE parent IN (SELECT id FROM mark)) AS labelled
  FROM mark HAVING n > 0
  UNION ALL
  SELECT (SELECT MAX(n) FROM label), SUM(dur), SUM(labelled) FROM thread WHERE NOT EXISTS (FROM mark)
  HAVING COUNT(*) > 0
), line AS (
  SELECT IF(cat = 'user_annotation', 1, 2) AS part, MIN(ts) AS first_ts, name, COUNT(*) AS n, SUM(dur) AS dur
  FROM nested GROUP BY cat, name
  UNION ALL
  SELECT 3, 0, '(unlabelled)', NULL, step.dur - step.labelled FROM step
)
SELECT IF(part = 2, 'device', 'host') AS side, name, line.n, line.dur/1e6 AS total_ms,
  line.dur/1e6/step.n AS ms_per_step, line.dur/step.dur AS share
FROM line, step
ORDER BY part, first_ts, name
"""

OPS_SQL = """\
WITH win AS (
  SELECT ts AS t0, ts + dur AS t1
  FROM slice
  WHERE name={span} AND cat={cat}
  ORDER BY ts LIMIT 1
)
SELECT name, COUNT(*) n, SUM(dur)/1e6 total_ms, AVG(dur)/1e3 avg_us
FROM slice, win
WHERE ts>=win.t0 AND ts<win.t1 AND name LIKE 'aten::%'
GROUP BY name
ORDER BY n DESC, name
"""


class Trace:
    """A parsed Chrome trace. Make one with `capture` or `Trace.load`; times in its tables are inclusive."""

    def __init__(self, data: dict[str, Any], *, recorded: bool = False) -> None:
        """Wrap a parsed trace. data: the JSON, kept as it is. recorded: it comes from a file, not from this run."""
        self.data = as_chrome_trace(data, where="data")
        self.recorded = recorded

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read *.json or *.json.gz. Raises FileNotFoundError, and ValueError if it is not a PyTorch trace."""
        return cls(read_chrome_trace(path), recorded=True)

    def save(self, path: str | Path) -> None:
        """Write *.json or *.json.gz; loading it again gives the same tables."""
        write_chrome_trace(self.data, path)

    def to_tensorboard(self, logdir: str | Path, worker: str = "roseinfer") -> Path:
        """Write <worker>.<ns>.pt.trace.json.gz under `logdir`, where torch-tb-profiler looks for it."""
        if not worker or "/" in worker:
            raise ValueError(f"worker must be a file name part, got {worker!r}")
        folder = Path(logdir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{worker}.{time.time_ns()}.pt.trace.json.gz"
        self.save(path)
        return path

    @property
    def metadata(self) -> dict[str, Any]:
        """The values device, torch, steps, warmup, recorded_at; empty for a trace that `capture` did not make."""
        return self.data.get(METADATA_KEY, {})

    @cached_property
    def slices(self) -> list[Slice]:
        """The complete events in time order, an enclosing one before those it encloses."""
        return complete_slices(self.data)

    def sql(self, query: str) -> pd.DataFrame:
        """Run one read query (DuckDB) over the table `slice`.

        Columns, named as in Perfetto: id, ts and dur in ns, cat, name, tid, pid, args (JSON). A query cannot
        write, nor reach files or Python variables. Raises ValueError with DuckDB's message and the place.
        """
        with result_of(query, self._db) as result:
            return result.df()

    def rows(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a query as `sql` does. Return the column names, and the rows as DuckDB has them (None for NULL)."""
        with result_of(query, self._db) as result:
            return [column[0] for column in result.description], result.fetchall()

    @cached_property
    def _db(self) -> duckdb.DuckDBPyConnection:
        import duckdb
        import pandas as pd

        frame = pd.DataFrame(self.slices, columns=Slice._fields)
        frame["args"] = [json.dumps(event.args) if event.args else None for event in self.slices]
        frame["id"] = range(len(frame))
        db = duckdb.connect(":memory:")
        db.register("events", frame)
        db.execute(
            "CREATE TABLE slice AS "
            "SELECT id, ts, dur, cat, name, tid, pid, TRY_CAST(args AS JSON) AS args FROM events ORDER BY id"
        )
        db.unregister("events")
        lock(db)
        return db

    def spans(self, prefix: str = SPAN_PREFIX) -> Facts:
        """Make one row per span whose name starts with `prefix`, by first appearance, host before device.

        share is of the host time of the steps; ms_per_step divides by their number. The steps are the profiler's own
        marks (ProfilerStep#7 and the like, one row for all of them) if `prefix` lets them in, else the outermost spans.
        Where those have several names, labels stand side by side: the time is then that from the first to the last, and
        the most frequent one says how many steps there are. The last row, (unlabelled), is what the steps' direct
        children, or the labels side by side, leave uncovered. A device span runs from its first kernel to its last, so
        device rows neither nest nor add up. Raises ValueError if there is no such span.
        """
        self.require_spans(prefix)
        query = SPANS_SQL.format(prefix=_quoted(prefix))
        df = self.sql(query)
        df["n"] = df["n"].astype("Int64")
        return Facts(
            df,
            exact=["name", "n"],
            live=["side", "total_ms", "ms_per_step", "share"],
            title="Spans",
            note=self.caption,
            formats={"share": "{:.1%}"},
            bars=["share"],
            exact_rows=df["side"] == "host",
            query=query,
        )

    def ops(self, span_name: str, cat: str = HOST_SPAN) -> Facts:
        """Count the aten ops that start inside the first span `span_name`: n, total ms, average us (both inclusive).

        "ProfilerStep#*" is the first of the profiler's own steps. The rule is the one of the course's first source
        post: t0 <= ts < t1, whatever the thread. Raises ValueError if the trace has no such span.
        """
        span = self._first_span(span_name, cat).name
        query = OPS_SQL.format(span=_quoted(span), cat=_quoted(cat))
        return Facts(
            self.sql(query),
            exact=["name", "n"],
            live=["total_ms", "avg_us"],
            title=f"aten ops in the first {span}",
            note=f"{self.caption}; times are inclusive",
            query=query,
        )

    def op_counts(self, span: str | None = None, outside: tuple[str, ...] = ()) -> Counter[str]:
        """Count how often each aten op starts, in the whole trace or in the first host span of that name.

        outside: ops and spans whose inside is not looked into; an op counts, what it starts on its thread does not.
        """
        return Counter(op.name for op in self.ops_outside(lambda event: event.name in outside, span))

    def ops_outside(self, is_whole: Callable[[Slice], bool], span: str | None = None) -> Iterator[Slice]:
        """Yield the aten ops in time order, without what the ops and spans that are whole start on their thread."""
        whole_until: dict[int | None, int] = {}
        for event in self._within(span):  # in time order, an enclosing op first
            if event.ts < whole_until.get(event.tid, 0):
                continue
            if event.name.startswith("aten::"):
                yield event
            if is_whole(event):
                whole_until[event.tid] = event.end

    def is_transfer(self, op: Slice) -> bool:
        """Tell whether `op` makes a tensor on one device from a tensor on another, as .to, torch.tensor and .tolist do.

        A CPU makes no such copy. A copy_ into a tensor that is already there is none of them: a CPU makes that one too.
        """
        if op.name != "aten::_to_copy":
            return False
        starts = self._transfer_starts[op.tid]
        first = bisect_left(starts, op.ts)
        return first < len(starts) and starts[first] < op.end

    @cached_property
    def _transfer_starts(self) -> defaultdict[int, list[int]]:
        """List when each thread starts a copy between host and device, in ns."""
        sent = {
            event.args["correlation"]
            for event in self.slices
            if event.cat == DEVICE_COPY
            and any(way in event.name for way in BETWEEN_DEVICES)
            and event.args
            and "correlation" in event.args
        }
        starts: defaultdict[int, list[int]] = defaultdict(list)
        for event in self.slices:
            if event.cat in LAUNCHES and event.args and event.args.get("correlation") in sent:
                starts[event.tid].append(event.ts)
        return starts

    def count(self, op: str, span: str | None = None) -> int:
        """Count how often `op` ("aten::copy_", or any other event's name) starts; `span` as in op_counts."""
        return sum(event.name == op for event in self._within(span))

    @cached_property
    def caption(self) -> str:
        """One line that says where the times come from."""
        known = self.metadata
        if not known:
            return "a trace without metadata"
        when = f"recorded {known['recorded_at'][:10]}" if self.recorded else "measured live"
        return f"{when} on {known['device']}, torch {known['torch']}, {known['steps']} steps"

    def _within(self, span: str | None) -> Iterable[Slice]:
        if span is None:
            return self.slices
        window = self._first_span(span, HOST_SPAN)
        return [event for event in self.slices if window.ts <= event.ts < window.end]

    def _first_span(self, name: str, cat: str) -> Slice:
        for event in self.slices:
            if name in (event.name, span_label(event.name)) and event.cat == cat:
                return event
        raise ValueError(f"no span {unknown_name(name, self._some_span_names(cat))}")

    def require_spans(self, prefix: str) -> None:
        """Raise ValueError if no host span's name starts with `prefix`."""
        names = self._some_span_names(HOST_SPAN)
        if not any(name.startswith(prefix) for name in names):
            raise ValueError(f"no span starts with prefix={prefix!r} in this trace; it has {listed(names)}")

    def _some_span_names(self, cat: str) -> list[str]:
        """Return the names of the trace's spans. Raises ValueError if there are none."""
        if names := self._span_names(cat):
            return names
        raise ValueError(f"this trace has no span (cat {cat!r}): label a step with torch.profiler.record_function")

    def _span_names(self, cat: str) -> list[str]:
        return list(dict.fromkeys(span_label(event.name) for event in self.slices if event.cat == cat))


def span_label(name: str) -> str:
    """Return the name under which a span is counted: the profiler numbers its steps, and all of them are one label."""
    number = name.removeprefix(PROFILED_STEP)
    return ANY_PROFILED_STEP if number != name and number.isdecimal() else name


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
