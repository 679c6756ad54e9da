"""The promises behind a queue: stages from 14 on, unusual ones and the engine keep them, and mutants break them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from caught import require_caught_by_name, require_held
from devices import CUDA
from engine_queue import EngineQueue, OverlappedEngineQueue
from mutants import QUEUE_MUTANTS, Mutant
from tiers import at_night, in_every_run
from unusual_queues import UNUSUAL_QUEUES

from course.contract import PROMISES, QUEUE_PROMISES, Promise, check_promises, promises_of
from course.contract.queue import promises as queue_promises
from course.contract.queue.driver import has_queue
from roseinfer.sequence import Sequence
from stages import LADDER, NaiveCat, TokenBudget

pytestmark = pytest.mark.slow


QUEUES = [cls for cls in LADDER if has_queue(cls)] + [EngineQueue, OverlappedEngineQueue]
# The frozen ones between the first and the last queue differ by one change each from a neighbour.
BETWEEN = ("s15", "s16", "s17", "s18")
UNUSUAL_DAILY = ("AllAtOnce",)  # at night each of its ways alone, too


def test_stages_from_14_on_have_a_queue():
    assert [cls.name[:3] for cls in LADDER if has_queue(cls)] == ["s14", "s15", "s16", "s17", "s18", "s19"]
    assert promises_of(NaiveCat) == PROMISES
    assert promises_of(TokenBudget) == (*PROMISES, *QUEUE_PROMISES)


@pytest.mark.parametrize("queue_class", at_night(QUEUES, BETWEEN), ids=lambda cls: cls.name)
@pytest.mark.parametrize("promise", QUEUE_PROMISES, ids=lambda promise: promise.name)
def test_promise(queue_class: type, promise: Promise):
    promise.check(queue_class, "cpu")


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("queue_class", QUEUES, ids=lambda cls: cls.name)
@pytest.mark.parametrize(
    "promise",
    [queue_promises.runs_a_queue, queue_promises.any_budget, queue_promises.small_pools],
    ids=lambda f: f.__name__,
)
def test_a_queue_gives_the_references_tokens_on_a_gpu(queue_class: type, promise: Callable, device: str):
    promise(queue_class, device)


@pytest.mark.parametrize("mutant", QUEUE_MUTANTS, ids=repr)
def test_a_mutant_is_caught_by_the_promise_that_names_it(mutant: Mutant):
    require_caught_by_name(mutant, QUEUE_PROMISES)


def test_every_promise_is_named_by_a_mutant():
    named = {name for mutant in QUEUE_MUTANTS for name in mutant.named}
    assert named == {promise.name for promise in QUEUE_PROMISES if not promise.last}


@pytest.mark.parametrize("stage_class", in_every_run({cls.__name__: (cls,) for cls in UNUSUAL_QUEUES}, UNUSUAL_DAILY))
def test_an_unusual_queue_that_is_right_is_not_refused(stage_class: type):
    require_held(stage_class, QUEUE_PROMISES)


def test_the_search_shortens_a_run_that_goes_wrong():
    [mutant] = [mutant for mutant in QUEUE_MUTANTS if mutant.name == "s14: a preempted one is lost"]
    [outcome] = check_promises(mutant.make(), promises=[promise for promise in QUEUE_PROMISES if promise.last])
    assert outcome.verdict == "broken"
    assert str(outcome.error).startswith("the shortest run found: ")
    assert str(outcome.error).count("; ") <= 8


class SwallowsForever(TokenBudget):
    """Every step fails, and says nothing."""

    def step(self) -> list[Sequence]:
        if not self.has_work:
            raise ValueError("step needs work")
        return []


@pytest.mark.parametrize("name", ["one_bad_request", "failed_queue_steps"])
def test_a_queue_that_never_ends_is_told_of_after_a_number_of_steps(name: str):
    [promise] = [promise for promise in QUEUE_PROMISES if promise.name == name]
    with pytest.raises(AssertionError, match=r"after \d+ steps some of \d requests are still not done"):
        promise.check(SwallowsForever, "cpu")
