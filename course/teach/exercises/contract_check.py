"""The contract as the last check of a learner's stage: every promise that is quick to try."""

from __future__ import annotations

from collections.abc import Collection

from course.contract import PROMISES, QUEUE_PROMISES, promises_of
from roseinfer.stage import Stage

from ..measure.contract_report import report_on
from .wrong import Wrong


def require_contract(
    stage_class: type[Stage],
    titles: Collection[str] = (),
    without: Collection[str] = (),
) -> None:
    """Raise Wrong about the first promise that is broken. Slow promises are left out.

    titles: of the promises to try; empty: all that fit the stage, those of a queue too if it has one. without: titles
    of promises to leave out. Raises KeyError for a title that no promise has.
    """
    by_title = {promise.title: promise for promise in (*PROMISES, *QUEUE_PROMISES)}
    asked = [by_title[title] for title in titles] or promises_of(stage_class)
    left_out = [by_title[title] for title in without]
    chosen = [promise for promise in asked if promise not in left_out]
    report = report_on(stage_class, chosen, until_broken=True, quick=True)
    if report.broken:
        first = report.broken[0]
        why = f"({first.promise.why}) is broken: {report.message(first)}"
        raise Wrong(f"the promise **{first.promise.title}** {why}")
