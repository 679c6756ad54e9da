"""run_contest: a contest from a notebook, with each entry as the text of its file."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from course.contest import Contest, EntryFile, Limits, Refused, read_entry, workload_of
from course.contest.board import RECORDED
from roseinfer.bench.verdict import explanation
from roseinfer.display.table import Table

from ..exercises.attempt import is_stub
from ..measure.progress_bar import progress_bar
from ..views.rows_table import table

REPEATS = 5
LIMITS = Limits(run_seconds=20.0)
ENGINE_ENTRY = str(RECORDED.with_suffix(".py"))  # the finished engine, as an entry
NOTHING = {"score": nan, "range": ""}
NO_ENTRY = {"entry": "none yet", "tokens": "", **NOTHING, "verdict": ""}


def run_contest(entries: Mapping[str, str], workload: str = "mixed", repeats: int = REPEATS) -> Table:
    """Score entries one after the other. entries: name -> the text of a file, or the path of one; `...` is left out.

    The column score has how many times as fast as the baseline an entry is. Raises ValueError for an unknown workload.
    """
    given = {name: source for name, source in entries.items() if not is_stub(source, "")}
    rows = [NO_ENTRY]
    if given:
        with progress_bar("entries", len(given) + 1) as done, Contest(workload_of(workload), repeats, LIMITS) as one:
            done()
            rows = []
            for name, source in given.items():
                rows.append({"entry": name, **outcome(one, name, source)})
                done()
    note = f"score: times as fast as the baseline. {explanation(repeats)}"
    live = ["score", "range", "verdict"]
    return table(rows, live, f"contest on the workload {workload!r}", note, {"score": "×{:.2f}"})


def outcome(contest: Contest, name: str, source: str) -> dict[str, Any]:
    """Score an entry. Its verdict says why it is refused, if it is."""
    try:
        row = contest.score(as_file(source), name).row
    except (Refused, ValueError) as error:
        return {"tokens": "refused", **NOTHING, "verdict": str(error)}
    ranged = f"{row['score_min']:.2f} to {row['score_max']:.2f}"
    return {"tokens": "equal", "score": row["score"], "range": ranged, "verdict": row["verdict"]}


def as_file(source: str) -> EntryFile:
    """Read the entry in a text of several lines, or in the file of that name. Raises ValueError as read_entry does."""
    if "\n" not in source:
        return read_entry(source)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "entry.py"
        path.write_text(source, encoding="utf-8")
        file = read_entry(path)
    return EntryFile("entry.py", file.source)
