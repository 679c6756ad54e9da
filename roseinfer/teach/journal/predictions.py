"""predictions: every guess of the course against the number that was measured."""

from __future__ import annotations

import base64
import html
import math
from dataclasses import dataclass

from roseinfer.display.cells import Cells, Column
from roseinfer.display.figure import PALETTE, figure_alt
from roseinfer.display.view import View, card

from . import entries as journal
from .predict import factor_between, shown_number

NEAR = 2  # a guess within this factor knows what is going on


@dataclass(frozen=True)
class Guess:
    label: str
    guess: float
    measured: float

    @property
    def factor(self) -> float:
        """1 when right; see predict.factor_between."""
        return factor_between(self.guess, self.measured)

    def in_words(self) -> str:
        if self.factor == 1:
            return "exactly right"
        if math.isinf(self.factor):
            return f"{shown_number(abs(self.guess - self.measured))} away"
        return f"{self.factor:,.3g} times too {'high' if self.guess > self.measured else 'low'}"


@dataclass(frozen=True, repr=False)
class Predictions(View):
    """guesses: those whose number has been revealed. waiting: how many have not."""

    guesses: list[Guess]
    waiting: int

    def __repr__(self) -> str:
        return "predictions of the course: each guess against its measured number, on logarithmic axes"

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
        columns = ["", Column("guess", shown_number), Column("measured", shown_number), "what", "how far"]
        rows = [(i, g.guess, g.measured, g.label, g.in_words()) for i, g in enumerate(self.guesses, 1)]
        table = Cells.of(columns, rows).html("Guesses, and what was measured")
        return card(summary + _picture(self.guesses, self.in_words()) + table)


def predictions() -> Predictions:
    """All guesses so far, of all notebooks; a guess counts as it stood when its number was first revealed."""
    found: dict[str, tuple[float, float | None]] = {}
    for entry in journal.entries():
        label = entry.get("prediction")
        if label is not None and found.get(label, (0, None))[1] is None:
            found[label] = entry["guess"], entry["measured"]
    guesses = [Guess(label, guess, measured) for label, (guess, measured) in found.items() if measured is not None]
    return Predictions(guesses, len(found) - len(guesses))


def _picture(guesses: list[Guess], words: str) -> str:
    """An <img> with the guesses as numbered points. Empty when logarithmic axes have room for none."""
    points = [(i, g) for i, g in enumerate(guesses, 1) if g.guess > 0 and g.measured > 0]
    if not points:
        return ""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(4.5, 4.5))
    ends = [n for _, g in points for n in (g.guess, g.measured)]
    line = min(ends) / 3, max(ends) * 3
    ax.plot(line, line, "--", color="#808080", label="a right guess")
    ax.fill_between(line, [n / NEAR for n in line], [n * NEAR for n in line], color=PALETTE[4], alpha=0.2, lw=0,
                    label=f"within a factor of {NEAR}")  # fmt: skip
    ax.plot([g.measured for _, g in points], [g.guess for _, g in points], "o", color=PALETTE[0])
    for i, g in points:
        ax.annotate(str(i), (g.measured, g.guess), textcoords="offset points", xytext=(5, 4))
    ax.set(xscale="log", yscale="log", xlim=line, ylim=line, aspect="equal", xlabel="measured", ylabel="your guess")
    ax.grid(axis="both")
    ax.legend(loc="upper left")
    alt = f"{len(points)} guesses against their measured numbers, both axes logarithmic. {words}"
    png = base64.b64encode(figure_alt(fig, alt).png).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{png}">'
