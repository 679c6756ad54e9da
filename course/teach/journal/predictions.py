"""predictions: every guess of the course against the number that was measured."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

from roseinfer.display.chart import PAGE_WIDTH, Chart
from roseinfer.display.figure import PALETTE
from roseinfer.display.text_table import Column, TextTable
from roseinfer.display.view import View, card

from . import entries as journal
from .predict import factor_between, shown_number

LABEL_WIDTH = 360  # pixels
NEAR = 2  # a guess within this factor knows what is going on


@dataclass(frozen=True)
class Guess:
    label: str
    guess: float
    measured: float

    @property
    def factor(self) -> float:
        """The factor between guess and measured number, 1 when right (predict.factor_between)."""
        return factor_between(self.guess, self.measured)

    def in_words(self) -> str:
        if self.factor == 1:
            return "exactly right"
        if math.isinf(self.factor):
            return f"{shown_number(abs(self.guess - self.measured))} away"
        return f"{self.factor:,.3g} times too {'high' if self.guess > self.measured else 'low'}"


@dataclass(frozen=True, repr=False)
class Predictions(View):
    """View of all guesses. guesses: those whose number has been revealed. waiting: how many have not."""

    guesses: list[Guess]
    waiting: int

    def __repr__(self) -> str:
        return "predictions of the course: each guess over its measured number, on a logarithmic axis"

    def in_words(self) -> str:
        if not self.guesses:
            return "No guess has been measured yet."
        near = sum(g.factor <= NEAR for g in self.guesses)
        text = f"{near} of {len(self.guesses)} within a factor of {NEAR}"
        worst = max(self.guesses, key=lambda g: g.factor)
        return text + (f"; furthest off: {worst.label}, {worst.in_words()}." if worst.factor > 1 else ", all exact.")

    def to_html(self) -> str:
        waiting = f' <span class="rose-muted">Guessed, not measured yet: {self.waiting}.</span>' if self.waiting else ""
        summary = f"<p><b>{html.escape(self.in_words())}</b>{waiting}</p>"
        if not self.guesses:
            return card(summary)
        numbers = (Column("guess", shown_number), Column("measured", shown_number))
        columns: list[Column | str] = ["", *numbers, "what", "how far"]
        rows = [(i, g.guess, g.measured, g.label, g.in_words()) for i, g in enumerate(self.guesses, 1)]
        table = TextTable.of(columns, rows).html("Guesses, and what was measured")
        return card(summary + _picture(self.guesses, self.in_words()) + table)


def predictions() -> Predictions:
    """Collect the guesses of all notebooks so far. A guess counts as it stood when its number was first revealed."""
    found: dict[str, tuple[float, float | None]] = {}
    for entry in journal.entries():
        label = entry.get("prediction")
        if label is not None and found.get(label, (0, None))[1] is None:
            found[label] = entry["guess"], entry["measured"]
    guesses = [Guess(label, guess, measured) for label, (guess, measured) in found.items() if measured is not None]
    return Predictions(guesses, len(found) - len(guesses))


def _picture(guesses: list[Guess], words: str) -> str:
    """Draw an <img> with one row per guess. It is empty if no guess fits on a logarithmic axis."""
    rows: list[dict[str, Any]] = [
        {"guess": f"{i}. {g.label}", "ratio": g.guess / g.measured, "times": g.factor}
        for i, g in enumerate(guesses, 1)
        if g.guess > 0 and g.measured > 0
    ]
    if not rows:
        return ""
    import altair as alt

    widest = max(10, *(2 * row["times"] for row in rows))
    x = alt.X(
        "ratio:Q",
        title="your guess / measured; shaded: within a factor of 2",
        scale=alt.Scale(type="log", domain=[1 / widest, widest], nice=False),
    )
    y = alt.Y("guess:N", title=None, sort=None, axis=alt.Axis(labelLimit=LABEL_WIDTH, grid=True))
    near = alt.Chart(alt.Data(values=[{"from": 1 / NEAR, "to": NEAR}]), width=PAGE_WIDTH - LABEL_WIDTH - 40)
    near = near.properties(height=22 * len(rows))
    right = alt.Chart(alt.Data(values=[{"ratio": 1}]))
    points = alt.Chart(alt.Data(values=rows)).mark_point(filled=True, size=110, opacity=1)
    chart = alt.layer(
        near.mark_rect(color=PALETTE[4], opacity=0.25).encode(alt.X("from:Q"), alt.X2("to")),
        right.mark_rule(strokeDash=[6, 4]).encode(x),
        points.encode(x, y),
    )
    return Chart(chart, f"{len(rows)} guesses over their measured numbers, on a logarithmic axis. {words}").to_html()
