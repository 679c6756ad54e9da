"""run_contest: a contest from a notebook, with each entry as the text of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from course.contest import Contest, EntryFile, Limits, Refused, Score, read_entry, workload_of
from course.contest.board import RECORDED
from roseinfer.bench.verdict import OVERLAP, explanation, ratio_text
from roseinfer.display.table import Table

from ..exercises.attempt import is_stub
from ..measure.progress_bar import progress_bar
from ..views.rows_table import table
from ..views.said import Said, say

REPEATS = 3
LIMITS = Limits(run_seconds=20.0)
ENGINE_ENTRY = str(RECORDED.with_suffix(".py"))  # the finished engine, as an entry
NO_ENTRY = {"entry": "none yet: see the exercise above", "tokens": "", "score": "", "range": "", "verdict": ""}


@dataclass(frozen=True, repr=False)
class Outcomes:
    """Outcomes of a contest for each entry, by name: a score, or the line that refuses it."""

    workload: str
    repeats: int
    scores: Mapping[str, Score | str]

    @cached_property
    def view(self) -> Table:
        rows = [_row(name, one) for name, one in self.scores.items()] or [NO_ENTRY]
        note = f"score: times as fast as the baseline. {explanation(self.repeats)}"
        live = ["score", "range", "verdict"]
        return table(rows, live, f"contest on the workload {self.workload!r}", note)

    def __repr__(self) -> str:
        return repr(self.view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.view._repr_mimebundle_()

    def score(self, name: str) -> float:
        """Return an entry's score. Raises ValueError for an entry that was refused."""
        found = self.scores[name]
        if isinstance(found, str):
            raise ValueError(f"{name} has no score: {found}")
        return float(found.row["score"])


def run_contest(entries: Mapping[str, str], workload: str = "mixed", repeats: int = REPEATS) -> Outcomes:
    """Score entries one after the other. entries: name -> the text of a file, or the path of one; `...` is left out.

    Raises ValueError for an unknown workload.
    """
    given = {name: source for name, source in entries.items() if not is_stub(source, "")}
    scores: dict[str, Score | str] = {}
    if not given:
        return Outcomes(workload, repeats, {})
    with progress_bar("entries", total=len(given) + 1) as done, Contest(workload_of(workload), repeats, LIMITS) as one:
        done()
        for name, source in given.items():
            scores[name] = outcome(one, name, source)
            done()
    return Outcomes(workload, repeats, scores)


def outcome(contest: Contest, name: str, source: str) -> Score | str:
    try:
        return contest.score(as_file(source), name)
    except (Refused, ValueError) as error:
        return str(error)


def as_file(source: str) -> EntryFile:
    """Read the entry in a text of several lines, or in the file of that name. Raises ValueError as read_entry does."""
    if "\n" not in source:
        return read_entry(source)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "entry.py"
        path.write_text(source, encoding="utf-8")
        file = read_entry(path)
    return EntryFile("entry.py", file.source)


def _row(name: str, found: Score | str) -> dict[str, str]:
    if isinstance(found, str):
        return {"entry": name, "tokens": "refused", "score": "", "range": "", "verdict": found}
    row = found.row
    ranged = f"{row['score_min']:.2f} to {row['score_max']:.2f}"
    score = ratio_text(row["score"], row["verdict"])
    return {"entry": name, "tokens": "equal", "score": score, "range": ranged, "verdict": row["verdict"]}


def say_contest(*contests: Outcomes) -> Said:
    """Say one sentence for each entry in each contest: faster, slower, no difference shown, or why it is refused."""
    sentences = [_sentence(name, found, one.workload) for one in contests for name, found in one.scores.items()]
    return say("what each entry reached on each workload", *sentences)


def _sentence(name: str, found: Score | str, workload: str) -> str:
    if isinstance(found, str):
        return f"{name} has no score on {workload}: {found}."
    row = found.row
    if row["verdict"] == OVERLAP:
        return f"{name} on {workload}: the ranges overlap, so no difference is shown (median ratio {row['score']:.2f})."
    return f"{name} on {workload}: {row['score']:.2f} times as fast as the baseline, {row['verdict']}."
