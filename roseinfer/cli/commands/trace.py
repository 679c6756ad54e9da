"""Look into a PyTorch profiler trace, ours or anyone's: SQL over it, its spans, the ops of a span, a timeline.

With a file alone: what is in it. Queries are DuckDB's SQL over the table slice(id, ts, dur, cat, name, tid, pid, args);
ts and dur are in ns.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import listed
from roseinfer.cli.command import Failed, no_file, require_named, require_writable
from roseinfer.cli.output import require_suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roseinfer.profiling import Trace
    from roseinfer.profiling.facts import Facts

EXAMPLES = (
    "roseinfer trace profiles/online_decode.json --sql-file data/posts/000/spans.sql",
    "roseinfer trace profiles/online_decode.json --ops roseinfer.kv.append_token --timeline step.png",
    "echo 'SELECT COUNT(*) FROM slice' | roseinfer trace FILE --sql -",
)
STDIN = "-"
PICTURES = (".png", ".svg", ".pdf")
DECIMALS = 3  # of ms and us in our own tables; a query's numbers have all their digits

CATS_SQL = """
SELECT cat, COUNT(*) AS events, COUNT(DISTINCT name) AS names
FROM slice GROUP BY cat ORDER BY events DESC, cat
"""
SPANS_SQL = r"""
SELECT cat, regexp_replace(name, '^ProfilerStep#\d+$', 'ProfilerStep#*') AS span,
  COUNT(*) AS n, SUM(dur)/1e6 AS total_ms, AVG(dur)/1e6 AS avg_ms
FROM slice WHERE cat IN ('user_annotation', 'gpu_user_annotation')
GROUP BY ALL ORDER BY cat DESC, MIN(id)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="*.json or *.json.gz, as torch.profiler writes it")
    query = parser.add_mutually_exclusive_group()
    query.add_argument("--sql", metavar="QUERY", help="one SELECT; - to read it from stdin")
    query.add_argument("--sql-file", metavar="F", help="the same from a file, such as data/posts/000/spans.sql")
    spans = "the labelled spans: time a step, share, what no label covers"
    parser.add_argument("--spans", action="store_true", help=spans)
    parser.add_argument("--ops", metavar="SPAN", help="the aten ops that start inside the first span of that name")
    picture = "draw the first step; *.png, *.svg or *.pdf"
    parser.add_argument("--timeline", type=Path, metavar="PICTURE", help=picture)


def run(args: argparse.Namespace) -> None:
    """Show a trace. Raises ValueError for a bad argument, a query included; Failed for a file that is no trace."""
    require_named("--ops", args.ops)
    require_named("--sql-file", args.sql_file)
    query = asked_query(args)
    if args.timeline is not None:
        require_suffix("--timeline", args.timeline, PICTURES)
        require_writable("--timeline", args.timeline)
    if args.file.is_dir():
        raise ValueError(f"FILE {args.file}: must be a trace, and is a folder")
    from roseinfer.profiling import Trace

    try:
        trace = Trace.load(args.file)
        _ = trace.slices  # events with impossible times are the file's fault, and said before any query
    except ValueError as error:
        raise Failed(error) from error
    if parts := unless_interrupted(lambda: list(sections(trace, args, query))):
        print("\n\n".join(parts), flush=True)
    if args.timeline:
        from roseinfer.display.timeline.timeline import timeline

        timeline(trace, prefix=span_prefix(trace)).save(args.timeline)
        print(f"written: {args.timeline}", file=sys.stderr)


def asked_query(args: argparse.Namespace) -> str | None:
    """Return the query that was asked, or None. Raises ValueError for a file that is missing or is not text."""
    if STDIN in (args.sql, args.sql_file):
        return sys.stdin.read()
    if args.sql_file is None:
        return args.sql
    try:
        return Path(args.sql_file).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--sql-file {args.sql_file}: {no_file(error)}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--sql-file {args.sql_file}: not UTF-8 text ({error})") from None


def sections(trace: Trace, args: argparse.Namespace, query: str | None) -> Iterator[str]:
    """Yield the parts of the output."""
    if not (query is not None or args.spans or args.ops or args.timeline):
        yield summary(trace, args.file)
        yield as_text(*trace.rows(CATS_SQL))
        yield f"Spans\n{as_text(*trace.rows(SPANS_SQL), decimals=DECIMALS)}"
    if args.spans:
        yield captioned(trace, trace.spans(prefix=span_prefix(trace)))
    if args.ops:
        yield captioned(trace, trace.ops(args.ops))
    if query is not None:
        columns, rows = trace.rows(query)
        if not rows:
            print(why_empty(trace, query), file=sys.stderr)
        yield as_text(columns, rows)


def unless_interrupted(ask: Callable[[], list[str]]) -> list[str]:
    """Return or raise what `ask` does. Another thread runs it, so Ctrl-C ends this one even while DuckDB is busy."""
    answer: Future[list[str]] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer.result()


def captioned(trace: Trace, table: Facts) -> str:
    from roseinfer.display.text_table import printable

    return f"{printable(table.title)}: {table.note}\n{as_text(*trace.rows(table.query), decimals=DECIMALS)}"


def as_text(columns: list[str], rows: list[tuple[Any, ...]], decimals: int | None = None) -> str:
    """Lay the text out for the terminal that stdout is, if it is one."""
    from functools import partial

    from roseinfer.display.number_text import rounded
    from roseinfer.display.text_table import Column, TextTable, terminal_width

    show = str if decimals is None else partial(rounded, decimals=decimals)
    return TextTable.of([Column(name, show) for name in columns], rows, missing="NULL").text(terminal_width())


def summary(trace: Trace, path: Path) -> str:
    """Describe the file: its size, its events and the time that they span."""
    slices = trace.slices
    seconds = (max(event.end for event in slices) - slices[0].ts) / 1e9
    events = trace.data["traceEvents"]
    phases = Counter(str(event.get("ph")) if isinstance(event, dict) else "no event" for event in events)
    phases["X"] -= len(slices)
    others = ", ".join(f"{count:,} {phase}" for phase, count in phases.items() if count)
    return (
        f"{path}: {path.stat().st_size:,} bytes, {trace.caption}\n"
        f"{len(slices):,} events with a duration in {seconds:,.6f} s: the table slice\n"
        f"other events, by phase (M: name of a thread, s and f: ends of an arrow, i: instant): {others or 'none'}"
    )


def span_prefix(trace: Trace) -> str:
    """Prefix of the spans to show: the course's, or "" for all spans in a trace that has none of the course's."""
    from roseinfer.profiling.traces.trace import HOST_SPAN, SPAN_PREFIX

    ours = any(event.cat == HOST_SPAN and event.name.startswith(SPAN_PREFIX) for event in trace.slices)
    return SPAN_PREFIX if ours else ""


def why_empty(trace: Trace, query: str) -> str:
    """Say that there are no rows, and which of the query's names the trace does not have, if there is one."""
    cats = [cat for cat, *_ in trace.rows(CATS_SQL)[1]]
    spans = [span for _, span, *_ in trace.rows(SPANS_SQL)[1]]
    known = {event.name for event in trace.slices}.union(cats)
    literals = re.findall(r"'((?:[^']|'')*)'", re.sub(r"--.*", "", query))
    missing = [text for text in dict.fromkeys(literals) if "%" not in text and text.replace("''", "'") not in known]
    if not missing:
        return "no rows"
    return (
        f"no rows; neither a name nor a cat in this trace: {listed(map(repr, missing))}\n"
        f"cats: {listed(cats)}\nspans: {listed(dict.fromkeys(spans)) or 'none'}"
    )
