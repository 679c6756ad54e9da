"""predict and reveal: a number is written down before it is measured."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from numbers import Integral, Real

from roseinfer.display.view import View, card

from . import entries as journal


@dataclass(frozen=True, repr=False)
class Prediction(View):
    label: str
    guess: float | None

    def __repr__(self) -> str:
        return f'guess for "{self.label}": {shown_number(self.guess, none="none yet")}'

    def to_html(self) -> str:
        label = f"<b>{html.escape(self.label)}</b>"
        if self.guess is None:
            return card(f"<p>{label}: write your guess in place of <code>None</code>, then run this cell again.</p>")
        return card(f"<p>{label}: your guess is <b>{shown_number(self.guess)}</b>. Now measure.</p>", "good")


def predict(label: str, guess: float | None = None) -> Prediction:
    """Note a guess for what `label` names. Raises ValueError for a guess that is not a number.

    Args:
        label: names what is measured; no other guess of the course has the same label.
        guess: your number. None: you have not guessed yet.
    """
    if guess is None or guess is Ellipsis:
        return Prediction(label, None)
    number = _number("guess", guess)
    journal.note_guess(label, number)
    return Prediction(label, number)


@dataclass(frozen=True, repr=False)
class Reveal(View):
    """Guess, measured, and what the formula gives; value is None when there is no formula."""

    prediction: Prediction
    measured: float
    formula: str = ""
    value: float | None = None
    timed: bool = False

    @property
    def explained(self) -> bool:
        """Whether the formula gives the measured number."""
        return self.value is not None and math.isclose(self.value, self.measured)

    def __repr__(self) -> str:
        lines = [self.prediction.label, f"  measured  {'by the clock' if self.timed else shown_number(self.measured)}"]
        if self.formula:
            verdict = "explains it" if self.explained else "does not explain it"
            lines.append(f"  formula   {self.formula} = {shown_number(self.value)}, {verdict}")
        return "\n".join([*lines, f"  guess     {shown_number(self.prediction.guess)}"])

    def to_html(self) -> str:
        rows = [
            ("your guess", shown_number(self.prediction.guess, none="–"), self._distance()),
            ("measured", _timed_number(self.measured) if self.timed else shown_number(self.measured), ""),
        ]
        if self.formula:
            rows.append(("formula", shown_number(self.value), f"{html.escape(self.formula)}: {self._explanation()}"))
        body = "".join(
            f'<tr><th scope="row" style="text-align: left">{name}</th>'
            f'<td style="text-align: right; font-variant-numeric: tabular-nums">{number}</td>'
            f'<td style="text-align: left">{note}</td></tr>'
            for name, number, note in rows
        )
        label = html.escape(self.prediction.label)
        shown = f"<table><tbody>{body}</tbody></table>"
        if self.prediction.guess is None:  # a reader of a recorded notebook can still guess
            shown = f"<details><summary>You have not guessed yet. Show the answer</summary>{shown}</details>"
        return card(f"<p><b>{label}</b></p>{shown}", "good")

    def _distance(self) -> str:
        guess = self.prediction.guess
        if guess is None:
            return "none this time: write a number in place of <code>None</code> and run again"
        if guess == self.measured:
            return "exactly right"
        factor = factor_between(guess, self.measured)
        if math.isinf(factor):
            return f"{shown_number(abs(guess - self.measured))} away"
        way = "above" if guess > self.measured else "below"
        close = "close: " if factor <= 1.2 else ""
        return f"{close}×{factor:,.3g} {way} the measured number"

    def _explanation(self) -> str:
        if self.explained:
            return "explains the measured number"
        assert self.value is not None, "only with a formula"
        difference = self.measured - self.value
        missing = f"{shown_number(abs(difference))} too {'few' if difference > 0 else 'many'}"
        return f"{missing}, so something is still unexplained"


def reveal(
    prediction: Prediction, measured: float, formula: str = "", value: float | None = None, timed: bool = False
) -> Reveal:
    """Show a guess beside the measured number and what a formula gives.

    Args:
        prediction: what teach.predict returned.
        measured: the number that this run gave.
        formula: says in words how `value` comes about, as in "12 layers x 8 sequences x 2 (K and V)".
        value: what the formula gives, as in 12 * 8 * 2.
        timed: measured depends on the clock, so text/plain leaves it out.

    Raises ValueError if a number is not one, or if only one of formula and value is given.
    """
    if not isinstance(prediction, Prediction):
        raise ValueError(f"prediction must be what predict(...) returned, got {type(prediction).__name__}")
    if bool(formula) != (value is not None):
        raise ValueError(f"formula and value go together, got formula={formula!r}, value={value!r}")
    value = None if value is None else _number("value", value)
    measured = _number("measured", measured)
    if prediction.guess is not None:
        journal.note_guess(prediction.label, prediction.guess, measured)
    return Reveal(prediction, measured, formula, value, timed)


def factor_between(guess: float, measured: float) -> float:
    """Return larger / smaller: 1 for equal numbers, infinite unless both are above 0."""
    if guess == measured:
        return 1.0
    if guess <= 0 or measured <= 0:
        return math.inf
    return max(guess / measured, measured / guess)


def _number(argument: str, value: object) -> float:
    """Return the value as an int or a float. Raises ValueError, naming the argument, if it is no finite number."""
    if hasattr(value, "item"):  # a tensor or numpy number of one element
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{argument} must be a finite number, got {value!r}")
    return int(value) if isinstance(value, Integral) else float(value)


def shown_number(number: float | None, none: str = "none") -> str:
    if number is None:
        return none
    return f"{number:,}" if isinstance(number, int) else f"{number:,.6g}"


def _timed_number(value: float) -> str:
    """Format a time with three digits, which is as exact as it is: 2,290 and not 2.29e+03."""
    return f"{float(f'{value:.3g}'):,.12g}"
