"""The contract as the last check of a learner's stage: every promise that is quick to try."""

from __future__ import annotations

from collections.abc import Iterable

from roseinfer.contract import Promise, check_promises
from roseinfer.stage import Stage

from ..measure.contract_report import ContractReport
from .exercise import Wrong


def require_contract(stage_class: type[Stage], promises: Iterable[Promise] | None = None) -> None:
    """Raises Wrong about the first promise that is broken, without the slow ones. promises: None for all that fit the
    stage, those of a queue too where it has one."""
    report = ContractReport(stage_class, tuple(check_promises(stage_class, promises=promises, quick=True)))
    if report.broken:
        first = report.broken[0]
        raise Wrong(f"the promise **{first.promise.title}** ({first.promise.why}) is broken: {report.message(first)}")
