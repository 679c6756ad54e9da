"""The contract measured: every wrong stage is caught by the promise that names the mistake, no right one is refused."""

from __future__ import annotations

import pytest
from mutants import MUTANTS, Mutant
from unusual_stages import UNUSUAL

from roseinfer.contract import PROMISES, check_promises
from roseinfer.stage import Stage
from stages import TritonPaged

TRITON = [pytest.param(mutant, marks=pytest.mark.needs_triton) for mutant in MUTANTS if mutant.base is TritonPaged]
PLAIN = [mutant for mutant in MUTANTS if mutant.base is not TritonPaged]
# They find nothing in a stage that is right in the others, and take as long as all of them together.
LONG_ONES = ("equals_transformers", "equals_transformers_in_full_size", "very_long_sequences", "llama_families")
a_mutant = pytest.mark.parametrize("mutant", [*PLAIN, *TRITON], ids=repr)


@a_mutant
def test_a_mutant_is_really_wrong_where_its_base_is_right(mutant: Mutant):
    assert mutant.shows(mutant.make())
    assert not mutant.shows(mutant.base)


@a_mutant
def test_a_mutant_is_caught_by_the_promise_that_names_it(mutant: Mutant):
    named = [promise for promise in PROMISES if promise.name in mutant.named]
    assert any(outcome.verdict == "broken" for outcome in check_promises(mutant.make(), promises=named))


def test_mutants_are_many_and_told_apart():
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("stage_class", UNUSUAL, ids=lambda cls: cls.__name__)
def test_an_unusual_stage_that_is_right_is_not_refused(stage_class: type[Stage]):
    outcomes = list(check_promises(stage_class, promises=[p for p in PROMISES if p.name not in LONG_ONES]))
    assert [outcome.promise.name for outcome in outcomes if outcome.verdict != "held"] == [], outcomes
