"""The contract as the last word on a learner's stage: every promise that is quick to try, and a search of schedules."""

from __future__ import annotations

from collections.abc import Iterable

from roseinfer.contract import PROMISES, Promise, check_promises
from roseinfer.stage import Stage

from ..measure.contract_report import ContractReport
from .exercise import Wrong


def require_contract(stage_class: type[Stage], promises: Iterable[Promise] = PROMISES) -> None:
    """Raises Wrong about the first promise that is broken, without the slow ones."""
    report = ContractReport(stage_class, tuple(check_promises(stage_class, promises=promises, quick=True)))
    if report.broken:
        first = report.broken[0]
        raise Wrong(f"the promise **{first.promise.title}** ({first.promise.why}) is broken: {report.message(first)}")
