"""What tests of the contract ask of a mutant, and of a class that is right in an unusual way."""

from __future__ import annotations

from collections.abc import Iterable

from mutants import Mutant

from course.contract import Promise, check_promises
from roseinfer.stage import Stage


def require_caught_by_name(mutant: Mutant, promises: Iterable[Promise]) -> None:
    """One of the promises that it names is broken."""
    named = [promise for promise in promises if promise.name in mutant.named]
    assert any(outcome.verdict == "broken" for outcome in check_promises(mutant.make(), promises=named))


def require_held(stage_class: type[Stage], promises: Iterable[Promise]) -> None:
    outcomes = list(check_promises(stage_class, promises=promises))
    assert [outcome.promise.name for outcome in outcomes if outcome.verdict != "held"] == [], outcomes
