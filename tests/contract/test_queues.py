"""The promises behind a queue: stages 14 to 17, unusual ones and the engine keep them, and mutants break them."""

from __future__ import annotations

import pytest
from engine_queue import EngineQueue, OverlappedEngineQueue
from mutants import QUEUE_MUTANTS, Mutant
from unusual_queues import UNUSUAL_QUEUES

from roseinfer.contract import PROMISES, QUEUE_PROMISES, Promise, check_promises, promises_of
from roseinfer.contract.queue_driver import has_queue
from stages import LADDER, NaiveCat, TokenBudget

QUEUES = [cls for cls in LADDER if has_queue(cls)] + [EngineQueue, OverlappedEngineQueue]
a_mutant = pytest.mark.parametrize("mutant", QUEUE_MUTANTS, ids=repr)


def test_stages_from_14_on_have_a_queue():
    assert [cls.name[:3] for cls in LADDER if has_queue(cls)] == ["s14", "s15", "s16", "s17"]
    assert promises_of(NaiveCat) == PROMISES
    assert promises_of(TokenBudget) == (*PROMISES, *QUEUE_PROMISES)


@pytest.mark.parametrize("queue_class", QUEUES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("promise", QUEUE_PROMISES, ids=lambda promise: promise.name)
def test_promise(queue_class: type, promise: Promise):
    promise.check(queue_class, "cpu")


@a_mutant
def test_a_mutant_is_really_wrong_where_its_base_is_right(mutant: Mutant):
    assert mutant.shows(mutant.make())
    assert not mutant.shows(mutant.base)


@a_mutant
def test_a_mutant_is_caught_by_the_promise_that_names_it(mutant: Mutant):
    named = [promise for promise in QUEUE_PROMISES if promise.name in mutant.named]
    assert any(outcome.verdict == "broken" for outcome in check_promises(mutant.make(), promises=named))


def test_mutants_are_many_and_every_promise_names_some():
    assert len(QUEUE_MUTANTS) >= 45
    assert len({mutant.name for mutant in QUEUE_MUTANTS}) == len(QUEUE_MUTANTS)
    named = {name for mutant in QUEUE_MUTANTS for name in mutant.named}
    assert named == {promise.name for promise in QUEUE_PROMISES if not promise.last}


@pytest.mark.parametrize("stage_class", UNUSUAL_QUEUES, ids=lambda cls: cls.__name__)
def test_an_unusual_queue_that_is_right_is_not_refused(stage_class: type):
    outcomes = list(check_promises(stage_class, promises=QUEUE_PROMISES))
    assert [outcome.promise.name for outcome in outcomes if outcome.verdict != "held"] == [], outcomes


def test_the_search_shortens_a_run_that_goes_wrong():
    [mutant] = [mutant for mutant in QUEUE_MUTANTS if mutant.name == "s14: a preempted one is lost"]
    [outcome] = check_promises(mutant.make(), promises=[promise for promise in QUEUE_PROMISES if promise.last])
    assert outcome.verdict == "broken"
    assert str(outcome.error).startswith("the shortest run found: ")
    assert str(outcome.error).count("; ") <= 8
