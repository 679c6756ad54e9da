"""Time that is left of a measurement: by the last run of each name, in proportion to the work."""

from __future__ import annotations

from roseinfer.profiling.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_name_is_expected_to_take_as_long_as_it_took():
    clock, seen = Clock(), []
    progress = Progress(seen.append, {"fast": 3, "slow": 3}, runs_total=6, clock=clock)
    for name, seconds in (("fast", 1), ("slow", 10), ("slow", 12), ("fast", 1)):
        progress.begin("a run", name)
        clock.now += seconds
    progress.begin("a run", "fast")
    left = [run.seconds_left for run in seen]
    assert left == [None, 2 * 1 + 3 * 1, 2 * 1 + 2 * 10, 2 * 1 + 1 * 12, 1 * 1 + 1 * 12]
    assert [run.runs_done for run in seen] == [0, 1, 2, 3, 4] and {run.runs_total for run in seen} == {6}


def test_a_short_warm_up_stands_for_its_share_of_the_work():
    clock, seen = Clock(), []
    progress = Progress(seen.append, {"engine": 4 + 3 * 100}, runs_total=4, clock=clock)
    progress.begin("warm-up", "engine", work=4)
    clock.now += 2
    progress.begin("repeat 1 of 3", "engine", work=100, repeat=0)
    assert seen[-1].seconds_left == 150


def test_requests_that_come_by_the_clock_take_at_least_that_long():
    clock, seen = Clock(), []
    progress = Progress(seen.append, {"engine": 10}, runs_total=10, at_least=600, clock=clock)
    progress.begin("warm-up", "engine")
    clock.now += 1
    progress.begin("repeat 1 of 1", "engine")
    assert seen[-1].seconds_left == 599
