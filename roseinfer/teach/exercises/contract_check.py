"""The contract as the last word on a learner's stage: any promise, and a search through schedules."""

from __future__ import annotations

from collections.abc import Iterable

from roseinfer.contract import PROMISES, Promise, check_promises
from roseinfer.stage import Stage

from ..measure.contract_report import ContractReport
from .exercise import Wrong

# What an exercise that changes one part of a stage may break without the tokens of a few batches showing it.
OF_A_CHANGED_PART = ("shared_kv_heads", "half_precision", "rows_in_order", "prefilled_again", "random_schedules")


def require_contract(stage_class: type[Stage], promises: Iterable[Promise] = PROMISES) -> None:
    """Raises Wrong about the first promise that is broken, without the slow ones."""
    report = ContractReport(stage_class, tuple(check_promises(stage_class, promises=promises, quick=True)))
    if report.broken:
        first = report.broken[0]
        raise Wrong(f"the promise **{first.promise.title}** ({first.promise.why}) is broken: {report.message(first)}")


def require_changed_part(stage_class: type[Stage]) -> None:
    """As require_contract, on the promises OF_A_CHANGED_PART."""
    named = {promise.name: promise for promise in PROMISES}
    require_contract(stage_class, [named[name] for name in OF_A_CHANGED_PART])
