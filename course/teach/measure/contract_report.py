"""contract: every promise of a stage, tried on a class from a cell, as a report that says where to look first."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from course.contract import Outcome, check_promises, promises_of
from course.contract.promises.all_promises import Promise
from course.contract.run import SECONDS
from roseinfer.display.view import View, card, inline
from roseinfer.stage import Stage

from ..exercises.attempt import describe_error
from ..notebook_setup import device as this_device
from .progress_bar import progress_bar

ELSEWHERE = "checking your answer raised"  # how describe_error begins when no line of the learner's is to blame
FEW = 3


@dataclass(frozen=True, repr=False)
class ContractReport(View):
    """Outcomes of a stage's promises, in the order in which these depend on each other. True when nothing is broken."""

    stage_class: type[Stage]
    outcomes: tuple[Outcome, ...]

    def __bool__(self) -> bool:
        return not self.broken

    @property
    def broken(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.verdict == "broken"]

    def __repr__(self) -> str:
        lines = [f"{self.stage_class.name}: {self._summary()}"]
        if self.broken:
            first, *others = self.broken
            lines += [f"look first at: {first.promise.title} ({first.promise.why})", f"  {self.message(first)}"]
            lines += [f"also broken: {'; '.join(outcome.promise.title for outcome in others)}"] if others else []
        lines += [f"{text}: {titles}" for text, titles in self._not_tried()]
        return "\n".join(lines)

    def to_html(self) -> str:
        parts = [f"<p>{'✗' if self.broken else '✓'} <b>{html.escape(self.stage_class.name)}</b>: {self._summary()}</p>"]
        if self.broken:
            first, *others = map(self._broken_html, self.broken)
            parts += [f"<p><b>Look first at:</b> {first}</p>", _fold(f"{len(others)} more broken", others)]
        held = [_promise(outcome) for outcome in self.outcomes if outcome.verdict == "held"]
        parts += [_fold(f"{len(held)} held", held)]
        parts += [f'<p class="rose-muted">{inline(f"{text}: {titles}")}</p>' for text, titles in self._not_tried()]
        return card("".join(parts), "not yet" if self.broken else "good")

    def _broken_html(self, outcome: Outcome) -> str:
        return f"{_promise(outcome)}<br>{inline(self.message(outcome))}"

    def message(self, outcome: Outcome) -> str:
        """Say what is wrong; for an error of the stage's own, with the line of its module or cell."""
        if outcome.error is None:
            return outcome.reason
        namespace = vars(sys.modules[self.stage_class.__module__])
        if not isinstance(outcome.error, AssertionError) or not str(outcome.error):
            return describe_error(outcome.error, namespace).removeprefix(f"{ELSEWHERE} ")
        cause = outcome.error.__cause__
        described = describe_error(cause, namespace) if isinstance(cause, Exception) else ELSEWHERE
        where = "" if described.startswith(ELSEWHERE) else described[described.rindex(", in line ") :]
        return f"{outcome.error}{where}"

    def _summary(self) -> str:
        tried = sum(outcome.verdict != "not tried" for outcome in self.outcomes)
        if not self.broken:
            return f"{'all ' if tried == len(self.outcomes) else ''}{tried} promises held"
        return f"{tried - len(self.broken)} of {tried} promises held, {len(self.broken)} broken"

    def _not_tried(self) -> list[tuple[str, str]]:
        """List (reason, titles) of the promises that were not tried."""
        reasons: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            if outcome.verdict == "not tried":
                reasons.setdefault(outcome.reason, []).append(outcome.promise.title)
        return [
            (f"not tried ({reason})", "; ".join(titles) if len(titles) <= FEW else f"the {len(titles)} others")
            for reason, titles in reasons.items()
        ]


def contract(
    stage_class: type[Stage], *, quick: bool = False, device: str | None = None, seconds: float = SECONDS
) -> ContractReport:
    """Try every promise on a stage class, with a bar while it runs. Errors of the stage are part of the report.

    quick: leave the slow promises out. device: where the models are; None: this machine's. seconds: after which a
    promise is stopped. Raises ValueError for anything but a Stage class.
    """
    if not (isinstance(stage_class, type) and issubclass(stage_class, Stage)):
        raise ValueError(f"stage_class must be a Stage class (not an object of it), got {stage_class!r}")
    return report_on(stage_class, quick=quick, device=device or this_device(), seconds=seconds)


def report_on(
    stage_class: type[Stage], promises: Iterable[Promise] | None = None, until_broken: bool = False, **options: Any
) -> ContractReport:
    """Try a stage's promises under a bar.

    promises: None for all that fit it. until_broken: none is tried after the first that is broken. options: those of
    check_promises.
    """
    chosen = [*(promises_of(stage_class) if promises is None else promises)]
    outcomes = []
    with progress_bar(f"promises of {stage_class.name}", total=len(chosen)) as done:
        for outcome in check_promises(stage_class, promises=chosen, **options):
            outcomes.append(outcome)
            done()
            if until_broken and outcome.verdict == "broken":
                break
    return ContractReport(stage_class, tuple(outcomes))


def _promise(outcome: Outcome) -> str:
    return f"{inline(outcome.promise.title)} <span class='rose-muted'>({inline(outcome.promise.why)})</span>"


def _fold(summary: str, items: list[str]) -> str:
    if not items:
        return ""
    return f"<details><summary>{summary}</summary><ul>{''.join(f'<li>{item}</li>' for item in items)}</ul></details>"
