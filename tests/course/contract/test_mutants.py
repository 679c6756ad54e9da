"""The contract measured: every wrong stage is caught by the promise that names the mistake, no right one is refused."""

from __future__ import annotations

import pytest
from caught import require_caught_by_name, require_held
from mutants import MUTANTS, Mutant
from tiers import in_every_run
from unusual_stages import UNUSUAL

from course.contract import PROMISES
from roseinfer.stage import Stage

pytestmark = pytest.mark.slow


# They find nothing in a stage that is right in the others, and take as long as all of them together.
LONG_ONES = ("equals_transformers", "equals_transformers_in_full_size", "very_long_sequences", "llama_families")
# Other strides, other books, another decode, a batch that is padded, two levels of inheritance.
UNUSUAL_DAILY = ("HeadsFirst", "OtherBooks", "OwnDecode", "PadsTheBatch", "TwoLevelsDown")


@pytest.mark.parametrize("mutant", MUTANTS, ids=repr)
def test_a_mutant_is_caught_by_the_promise_that_names_it(mutant: Mutant):
    require_caught_by_name(mutant, PROMISES)


@pytest.mark.parametrize("stage_class", in_every_run({cls.__name__: (cls,) for cls in UNUSUAL}, UNUSUAL_DAILY))
def test_an_unusual_stage_that_is_right_is_not_refused(stage_class: type[Stage]):
    require_held(stage_class, [promise for promise in PROMISES if promise.name not in LONG_ONES])
