"""The contract finds what is wrong with a stage, and teach.contract says it: a report, whatever the stage does."""

from __future__ import annotations

import random
import time

import pytest
import torch
from mutants import mutant_of
from mutants.told import FailsToFree, LongestPosition
from right_stage import Right

from course.contract import PROMISES, check_promises
from course.teach import contract

pytestmark = pytest.mark.slow


BY_NAME = {promise.name: promise for promise in PROMISES}
QUICK_ONLY = [promise for promise in PROMISES if not promise.slow]


def test_a_stage_that_keeps_them_all():
    report = contract(Right, quick=True, device="cpu")
    assert report and repr(report) == ("Right: 41 promises held\nnot tried (left out by quick=True): the 6 others")
    assert "41 held" in report.to_html() and "✓" in report.to_html()


def test_a_report_says_where_to_look_first():
    report = contract(LongestPosition, quick=True, device="cpu")
    lines = repr(report).splitlines()
    assert not report
    broken = len(report.broken)
    assert lines[0] == f"LongestPosition: {40 - broken} of 40 promises held, {broken} broken"
    assert lines[1] == "look first at: A batch of mixed lengths (positions and masks are each sequence's own)"
    assert lines[2].startswith("  sequence 0 of 4, prompt of 3 tokens: token 1 is ")
    assert lines[3].startswith("also broken: Small blocks; ")
    assert lines[5] == "not tried (tried when all others are held): Random schedules"
    assert f"{broken - 1} more broken" in report.to_html()


def test_an_error_of_the_stage_names_its_line():
    report = contract(FailsToFree, quick=True, device="cpu")
    assert [outcome.promise.name for outcome in report.broken] == ["errors_free_everything", "failed_steps"]
    assert repr(report).splitlines()[2].endswith("of your cell: `del self.caches[seq.seq_id]`")


def test_an_endless_loop_gives_a_report():
    class Endless(Right):
        def build(self, seqs):
            while True:
                try:
                    time.sleep(0.001)
                except Exception:
                    pass

    report = contract(Endless, seconds=0.5, device="cpu")
    assert repr(report).splitlines() == [
        "Endless: 1 of 2 promises held, 1 broken",
        "look first at: It fits the seam (the model calls what build returns, once a layer)",
        "  not done after 0.5 s, and stopped: does a loop never end?",
        f"not tried (the one before it never ended): the {len(PROMISES) - 2} others",
    ]


def test_a_constructor_that_breaks_gives_a_report():
    class NotMade(Right):
        def __init__(self, model, **sizes):
            raise TypeError("<no>")

    report = contract(NotMade, device="cpu")
    assert repr(report).splitlines()[2].startswith("  TypeError: <no>, in line ")
    assert repr(report).splitlines()[3] == f"not tried (there is no stage to try): the {len(PROMISES) - 1} others"
    assert "<no>" not in report.to_html() and "&lt;no&gt;" in report.to_html()


@pytest.mark.parametrize("wrong", [None, int, "NaiveCat"])
def test_what_is_no_stage_class_is_refused(wrong):
    with pytest.raises(ValueError, match="stage_class must be a Stage class"):
        contract(wrong)


def test_an_interrupt_is_the_callers():
    class Interrupted(Right):
        def build(self, seqs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        contract(Interrupted, device="cpu")


def test_the_random_state_stays():
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    list(check_promises(Right, promises=[p for p in QUICK_ONLY if p.name in ("half_precision", "random_schedules")]))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_a_stage_that_writes_into_its_model_harms_no_later_stage():
    names = ("can_be_made", "one_sequence", "batch_grows_and_shrinks", "leaves_your_model", "half_precision")
    promises = [BY_NAME[name] for name in names]
    assert any(
        outcome.verdict == "broken" for outcome in check_promises(mutant_of("RoundsYourWeights"), promises=promises)
    )
    assert [outcome.verdict for outcome in check_promises(Right, promises=promises)] == ["held"] * len(names)
