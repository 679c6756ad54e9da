"""Score: how many times as fast as the baseline an entry is, from runs in turn, with the spread of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from roseinfer.bench.verdict import explanation, ratio_text, spread, verdict
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import TextTable

BASELINE = "baseline"
COLUMNS = ("entry", "kind", "workload", "score", "range", "seconds", "verdict", "machine")


@dataclass(frozen=True, kw_only=True)
class Score(MachineResult):
    """How an entry compares with the baseline.

    rows: one, of the entry. samples: seconds of every run, of the baseline and of the entry. score: the baseline's
    median time over the entry's. score_min, score_max: the range of the ratios of the runs on the same requests.
    """

    SHORT: ClassVar = ("name", "kind", "score", "score_min", "score_max", "verdict")

    @property
    def row(self) -> dict[str, Any]:
        return self.rows[0]

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        return [scores_table([self]).text(width)]

    def notes(self) -> list[str]:
        return [meaning(self.arguments["repeats"])]


def score_row(name: str, kind: str, baseline: list[float], own: list[float]) -> dict[str, Any]:
    """Make the entry's row. baseline, own: seconds of the runs, in pairs on the same requests."""
    ratios = [before / after for before, after in zip(baseline, own, strict=True)]
    ranges = spread("score", ratios)
    medians = spread("baseline_seconds", baseline) | spread("seconds", own)
    score = medians["baseline_seconds"] / medians["seconds"]
    said = verdict([1 / s for s in baseline], [1 / s for s in own])
    return {"name": name, "kind": kind, **medians, **ranges, "score": score, "verdict": said}


def scores_table(scores: Iterable[Score]) -> TextTable:
    """Make a table of the scores, the best first."""
    return TextTable.of(COLUMNS, [cells(score) for score in sorted(scores, key=lambda score: -score.row["score"])])


def cells(score: Score) -> tuple[str, ...]:
    row = score.row
    return (
        row["name"],
        row["kind"],
        score.arguments["workload"],
        ratio_text(row["score"], row["verdict"]),
        f"{row['score_min']:.2f}..{row['score_max']:.2f}",
        f"{row['seconds']:.3f}",
        row["verdict"],
        score.device,
    )


def meaning(repeats: int) -> str:
    """Explain what the columns mean."""
    return (
        "Score: median time of the baseline over the entry's, in the same contest; every token was right. Range: of "
        f"the runs on the same requests. {explanation(repeats)}"
    )


def scoreboard(scores: list[Score], recorded: list[Score], width: int | None = None) -> str:
    """Show all scores as text. recorded: those that may come from another machine."""
    lines = [f"recorded: {', '.join(score.row['name'] for score in recorded)}"] if recorded else []
    repeats = min(score.arguments["repeats"] for score in [*scores, *recorded])
    return "\n\n".join([scores_table([*scores, *recorded]).text(width), *lines, meaning(repeats)])
