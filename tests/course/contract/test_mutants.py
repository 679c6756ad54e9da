"""The contract measured: every wrong stage is caught by the promise that names the mistake, no right one is refused."""

from __future__ import annotations

import re

import pytest
from caught import require_caught_by_name, require_held
from mutants import MUTANTS, Mutant, mutant_of
from mutants.told import TOLD
from tiers import in_every_run
from unusual_stages import UNUSUAL

from course.contract import PROMISES, check_promises
from course.teach.measure.contract_report import ContractReport
from roseinfer.stage import Stage

pytestmark = pytest.mark.slow


# They find nothing in a stage that is right in the others, and take as long as all of them together.
LONG_ONES = ("equals_transformers", "equals_transformers_in_full_size", "very_long_sequences", "llama_families")
UNUSUAL_DAILY = ("OwnInAllOfIt", "PadsTwoLevelsDown")  # unusual in several ways; at night each way alone, too


@pytest.mark.parametrize(("name", "broken", "message"), TOLD, ids=lambda value: getattr(value, "name", value))
def test_each_promise_is_broken_by_some_stage_and_says_how(name: str, broken: str | type[Stage], message: str):
    stage_class = broken if isinstance(broken, type) else mutant_of(broken)
    [outcome] = check_promises(stage_class, promises=[promise for promise in PROMISES if promise.name == name])
    assert outcome.verdict == "broken"
    told = ContractReport(stage_class, (outcome,)).message(outcome)
    assert message in told or re.search(message, told)


def test_no_promise_is_left_out_above():
    # The full size shares its code with equals_transformers, and takes long.
    names = [promise.name for promise in PROMISES]
    assert {name for name, _, _ in TOLD} == set(names) - {"equals_transformers_in_full_size"}
    assert len(set(names)) == len(names)


CAUGHT_ABOVE = {broken: name for name, broken, _ in TOLD}


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if CAUGHT_ABOVE.get(m.name) not in m.named], ids=repr)
def test_a_mutant_is_caught_by_the_promise_that_names_it(mutant: Mutant):
    require_caught_by_name(mutant, PROMISES)


@pytest.mark.parametrize("stage_class", in_every_run({cls.__name__: (cls,) for cls in UNUSUAL}, UNUSUAL_DAILY))
def test_an_unusual_stage_that_is_right_is_not_refused(stage_class: type[Stage]):
    require_held(stage_class, [promise for promise in PROMISES if promise.name not in LONG_ONES])
