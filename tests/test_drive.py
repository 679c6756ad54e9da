"""drive and drive_by_clock: who is added when, what is yielded, and when no more steps follow."""

from __future__ import annotations

import pytest

from roseinfer.drive import LOOK_S, WallClock, drive, drive_by_clock


class Countdown:
    """A queue of numbers: a request is finished after as many steps. A step takes a second of the clock."""

    def __init__(self, clock=None) -> None:
        self.left: list[int] = []
        self.clock = clock

    @property
    def has_work(self) -> bool:
        return bool(self.left)

    def add(self, steps: int) -> None:
        self.left.append(steps)

    def step(self) -> int:
        assert self.left, "a step without work"
        if self.clock:
            self.clock.time += 1
        finished = self.left.count(1)
        self.left = [steps - 1 for steps in self.left if steps > 1]
        return finished


class Still:
    """A clock that goes on in steps and waits alone. most: that it waits at once."""

    def __init__(self, most: float = 100) -> None:
        self.time, self.most, self.waits = 0.0, most, 0

    def now(self) -> float:
        return self.time

    def wait_until(self, then: float) -> None:
        self.waits += 1
        self.time = min(then, self.time + self.most)


def run(arrivals, clock=None, stop=lambda: False):
    """What each step returned, and when each request was added."""
    clock = clock or Still()
    queue, added = Countdown(clock), []

    def add(steps: int, when: float) -> None:
        added.append((when, clock.time))
        queue.add(steps)

    return list(drive_by_clock(queue, arrivals, clock, add, stop)), added


def test_all_at_once_to_the_end():
    assert list(drive(Countdown(), [3, 1, 1])) == [2, 0, 1]


def test_what_was_added_before_is_driven_too():
    queue = Countdown()
    queue.add(2)
    assert list(drive(queue)) == [0, 1] and list(drive(queue)) == []


def test_a_caller_acts_between_two_steps():
    queue = Countdown()
    for number, _ in enumerate(drive(queue, [1])):
        if number < 2:
            queue.add(1)
    assert number == 2


def test_each_is_added_when_its_time_has_come_or_after_the_step():
    steps, added = run([(0, 2), (0, 1), (0.5, 1), (7.25, 1)])
    assert steps == [1, 2, 1]
    assert added == [(0, 0), (0, 0), (0.5, 1), (7.25, 7.25)]


def test_a_last_request_that_is_done_at_once_ends_the_run():
    assert list(drive_by_clock(Countdown(), [(3, 0)], Still(), lambda steps, when: None)) == []


@pytest.mark.parametrize("arrivals", [[], iter(())])
def test_without_arrivals_there_is_no_step(arrivals):
    assert run(arrivals) == ([], [])


def test_a_clock_may_return_early():
    clock = Still(most=1)
    assert run([(2.5, 1)], clock)[1] == [(2.5, 2.5)] and clock.waits == 3


def test_stop_is_asked_before_each_step_and_while_it_waits():
    clock = Still(most=1)
    assert run([(0, 5), (9, 1)], clock, lambda: clock.time >= 2)[0] == [0, 0]
    clock = Still(most=1)
    assert run([(9, 1)], clock, lambda: clock.time >= 3) == ([], []) and clock.waits == 3


def test_the_wall_clock_counts_from_its_beginning_and_sleeps_in_pieces():
    time, slept = [7.0], []
    clock = WallClock(lambda: time[0], slept.append)
    assert clock.began == 7 and clock.now() == 0
    time[0] = 9.5
    assert clock.now() == 2.5
    for then in (10, 2.51, 1):
        clock.wait_until(then)
    assert slept == [LOOK_S, pytest.approx(0.01), 0]
