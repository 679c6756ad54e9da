"""python -m tools.step_trace: write into docs/architecture.md which files and functions one decode step runs through.

The table stands between `<!-- decode step -->` and `<!-- end -->`. A test holds the page to a new trace.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from roseinfer import LLM, SamplingParams
from roseinfer.llm.live_requests import Inbox
from roseinfer.paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PLACE = re.compile(r"(<!-- decode step -->\n).*?(<!-- end -->)", re.DOTALL)
PACKAGE = ROOT / "roseinfer"
Trace = dict[Path, list[str]]


def trace_of_a_step() -> Trace:
    """Trace a decode step of two greedy requests on a CPU: the functions that ran by file, in the order of first calls.

    Files are relative to roseinfer/.
    """
    with LLM("tiny", device="cpu", async_scheduling=False) as llm:
        requests = [llm.new_request([5, 6, 7], SamplingParams(max_tokens=9, ignore_eos=True)) for _ in range(2)]
        inbox = Inbox()
        llm.live.add(requests, inbox)
        for _ in range(3):  # the prompts, and steps that make what later ones keep
            llm.live.step()
        trace = _calls_of(llm.live.step)
        llm.live.end(requests)
    return trace


def _calls_of(step: Any) -> Trace:
    found: Trace = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if event == "call" and PACKAGE in path.parents and not name.startswith("<"):
            functions = found.setdefault(path.relative_to(PACKAGE), [])
            if name not in functions:
                functions.append(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(before)
    return found


def table_of(trace: Trace) -> str:
    """Write the trace as a table of Markdown, with a sentence that counts above it."""
    num_functions = sum(map(len, trace.values()))
    said = f"It runs through {num_functions} functions in {len(trace)} files:"
    rows = [f"| `{path}` | {' '.join(f'`{name}`' for name in names)} |" for path, names in trace.items()]
    return "\n".join([said, "", "| file in `roseinfer/` | functions, by their first call |", "|---|---|", *rows, ""])


def fill(page: str, trace: Trace) -> str:
    """Return the page with the trace in its place."""
    return PLACE.sub(lambda match: f"{match[1]}{table_of(trace)}{match[2]}", page)


def num_lines(trace: Trace) -> int:
    """Count the lines of the trace's files."""
    return sum(len((PACKAGE / path).read_text(encoding="utf-8").splitlines()) for path in trace)


if __name__ == "__main__":
    TRACE = trace_of_a_step()
    print(f"{len(TRACE)} files with {num_lines(TRACE):,} lines")
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), TRACE), encoding="utf-8")
