"""Board: the scores so far, in one JSON file, and as a chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roseinfer.display.chart import PAGE_WIDTH, Chart
from roseinfer.display.measured import on_one_line
from roseinfer.paths import DATA

from .score import BASELINE, Score

RECORDED = DATA / "contest" / "engine.json"  # the finished engine's score, in a clone
LABELS, BAR = 180, 26  # pixels


def read_board(path: Path) -> list[Score]:
    """Read the scores in a file; [] if it does not exist yet. Raises ValueError for a file that is no scoreboard."""
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["entries"]
        scores = [Score(**entry) for entry in entries]
        assert all(isinstance(score.row["score"], float) for score in scores)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AssertionError):
        raise ValueError(f"board {path}: must be a scoreboard, as `roseinfer contest run` writes it") from None
    return scores


def write_board(path: Path, scores: Sequence[Score]) -> None:
    lines = ",\n".join(on_one_line(score.to_dict()) for score in scores)
    path.write_text(f'{{"entries":[\n{lines}\n]}}\n', encoding="utf-8")


def require_free(path: Path, name: str) -> None:
    """Require that the board does not have the name yet. Raises ValueError if it does."""
    if name == BASELINE or any(score.row["name"] == name for score in read_board(path)):
        raise ValueError(f"name {name!r} is taken on {path}: give another one")


def recorded() -> list[Score]:
    """Return the finished engine's recorded score; [] outside a clone."""
    return read_board(RECORDED)


def draw_board(scores: Sequence[Score]) -> Chart:
    """Draw a bar for each score, the best first, with its range as a line and the baseline as a line at 1.

    Raises ValueError without a score.
    """
    if not scores:
        raise ValueError("scores must hold at least one score, got none")
    import altair as alt

    rows = [_bar(score) for score in sorted(scores, key=lambda score: -score.row["score"])]
    axis = alt.Axis(minExtent=LABELS, maxExtent=LABELS, labelLimit=LABELS, ticks=False)
    names = alt.Y("entry:N", title=None, sort=None, axis=axis)
    tips = [alt.Tooltip(f"{name}:N") for name in ("entry", "kind", "verdict", "machine")]
    bars = alt.Chart(alt.Data(values=rows)).encode(y=names, tooltip=tips)
    title = "times as fast as the baseline: medians; line: range of the runs"
    line = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[6, 4]).encode(x="one:Q")
    chart = alt.layer(
        bars.mark_bar(height=BAR - 10, opacity=0.7).encode(x=alt.X("score:Q", title=title)),
        bars.mark_rule(strokeWidth=2).encode(alt.X("low:Q"), alt.X2("high")),
        line,
    ).properties(width=PAGE_WIDTH - LABELS, height=BAR * len(rows))
    said = [f"{row['entry']} {row['score']:.2f} ({row['low']:.2f} to {row['high']:.2f})" for row in rows]
    text = f"scoreboard: {', '.join(sorted(row['entry'] for row in rows))}"
    return Chart(chart, text, f"times as fast as the baseline: {', '.join(said)}")


def _bar(score: Score) -> dict[str, Any]:
    row = score.row
    facts = {"entry": row["name"], "kind": row["kind"], "verdict": row["verdict"], "machine": score.device}
    return facts | {"score": row["score"], "low": row["score_min"], "high": row["score_max"]}
