"""Whether drafts pay, by a clock that the test sets."""

from __future__ import annotations

import pytest
from drafting import drafting_engine
from small_engines import engine_of, requests

from roseinfer.drive import drive
from roseinfer.engine.speculation.payoff import ENOUGH, READINGS, RETRY_AFTER, TRY_DRAFTS, Payoff, StepTimes, size_of


def measured(times: dict[int, float]) -> Payoff:
    """A Payoff that knows how long steps of these sizes take."""
    payoff = Payoff()
    for num_tokens, seconds in times.items():
        for _ in range(ENOUGH):
            payoff.times.add(num_tokens, seconds)
    return payoff


def test_what_is_not_known_is_measured_first_without_drafts():
    payoff = Payoff()
    decisions = []
    for _ in range(2 * ENOUGH + 1):
        decisions.append(payoff.is_worth(1, 4))
        payoff.observe(1, 4 * decisions[-1], 4 * decisions[-1], 1.0)
    assert decisions == [False] * ENOUGH + [True] * (ENOUGH + 1)


@pytest.mark.parametrize(
    ("seconds", "accepted", "pays"),
    [(1.1, 0, False), (1.9, 1, True), (2.1, 1, False), (4.9, 4, True), (5.1, 4, False)],
)
def test_drafts_pay_where_tokens_per_second_rise(seconds, accepted, pays):
    """One sequence, drafts of 4. So many of them were accepted, step after step."""
    payoff = measured({1: 1.0, 5: seconds})
    for _ in range(200):
        payoff.observe(1, 4, accepted, seconds)
    assert payoff.is_worth(1, 4) is pays


def test_a_batch_whose_steps_grow_with_their_tokens_gets_none():
    """Memory-bound at one sequence, bound by arithmetic at 16: the same acceptance pays here and not there."""
    payoff = measured({1: 1.0, 5: 1.2, 16: 2.0, 80: 8.0})
    for _ in range(100):
        payoff.observe(1, 4, 2, 1.2)
    assert payoff.is_worth(1, 4) and not payoff.is_worth(16, 64)


def decided(accepted: int, number: int) -> list[bool]:
    """Decisions for one sequence whose step takes 1 s, or 2 s with a draft of 4 that is accepted or not."""
    payoff = measured({1: 1.0, 5: 2.0})
    for _ in range(200):
        payoff.observe(1, 4, accepted, 2.0)
    return [payoff.is_worth(1, 4) for _ in range(number)]


def test_where_drafts_do_not_pay_they_are_tried_ever_more_rarely():
    decisions = decided(0, 7 * RETRY_AFTER)
    tries = [at for at, drafts in enumerate(decisions) if drafts]
    first, second = RETRY_AFTER, RETRY_AFTER + TRY_DRAFTS + 2 * RETRY_AFTER
    assert tries == [*range(first, first + TRY_DRAFTS), *range(second, second + TRY_DRAFTS)]


def test_where_drafts_pay_a_step_without_is_measured_now_and_then():
    decisions = decided(4, 4 * RETRY_AFTER)
    assert [at for at, drafts in enumerate(decisions) if not drafts] == [RETRY_AFTER, 3 * RETRY_AFTER + 1]


def test_when_the_text_begins_to_repeat_itself_the_first_try_finds_out():
    payoff = measured({1: 1.0, 5: 2.0})
    for _ in range(200):
        payoff.observe(1, 4, 0, 2.0)
    decisions = []
    for _ in range(2 * RETRY_AFTER):
        decisions.append(payoff.is_worth(1, 4))
        payoff.observe(1, 4 * decisions[-1], 4 * decisions[-1], 1.0 + decisions[-1])
    assert decisions == [False] * RETRY_AFTER + [True] * RETRY_AFTER


def test_the_first_step_with_drafts_after_a_pause_is_not_measured():
    """A draft model computes then what it lacks."""
    payoff = Payoff()
    for _ in range(ENOUGH):
        assert not payoff.is_worth(1, 4)
        payoff.observe(1, 0, 0, 1.0)
    for seconds in [60.0, *[1.5] * ENOUGH]:
        assert payoff.is_worth(1, 4)
        payoff.observe(1, 4, 2, seconds)
    assert payoff.times.of(5) == 1.5


def test_one_late_step_does_not_count_and_a_change_does():
    times = StepTimes()
    for seconds in [1.0, 9.0, 1.0, 1.0]:
        times.add(3, seconds)
    assert times.of(3) == 1.0
    for _ in range(READINGS):
        times.add(3, 2.0)
    assert times.of(3) == 2.0


def test_between_two_sizes_is_the_line_between_them():
    times = StepTimes()
    for size in (4, 8):
        for _ in range(ENOUGH):
            times.add(size, float(size))
    assert [times.of(n) for n in (3, 4, 5, 7, 8, 9, 10)] == [None, 4.0, 5.0, 7.0, 8.0, 8.0, None]


def test_sizes_next_to_each_other_are_one():
    assert [size_of(n) for n in (1, 7, 8, 9, 10, 15, 16, 19, 20, 1000)] == [1, 7, 8, 8, 10, 14, 16, 16, 20, 896]


def test_an_engine_measures_its_steps_and_stops_drafting_where_it_loses(small):
    """The clock says that a step takes as long as it has tokens: then no draft pays but one that always holds."""
    engine = drafting_engine(small)
    engine.speculation.payoff = payoff = Payoff()
    now = 0.0

    def clock():
        return now

    launch = engine.runner.launch

    def timed(step):
        nonlocal now
        now += sum(step.num_new)
        launch(step)

    engine.metrics.clock, engine.runner.launch = clock, timed
    [seq] = requests(small, [9], max_tokens=180)
    engine.add(seq)
    list(drive(engine))
    assert payoff.times.of(1) == 1.0 and payoff.times.of(4) == 4.0
    plain = engine_of(small)
    assert engine.metrics.num_drafted < 40 and plain.speculation is None
