"""Devices: work in order, results and errors when they are asked for, and a clock that the host does not hold up."""

from __future__ import annotations

import threading
from itertools import pairwise
from math import isnan
from time import perf_counter, sleep

import pytest

from roseinfer.overlap import InTurn, OwnClock


@pytest.mark.parametrize("device", [InTurn(), OwnClock()], ids=["in turn", "own clock"])
def test_work_is_done_in_order_and_gives_its_result(device):
    done = []
    launched = [device.launch(lambda i=i: done.append(i) or 10 * i, 1) for i in range(20)]
    assert [step.result() for step in launched] == [10 * i for i in range(20)]
    assert done == list(range(20))
    assert all(step.launched <= step.began <= step.ended for step in launched)
    assert all(before.ended <= after.began for before, after in pairwise(launched))


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("device", [InTurn(), OwnClock()], ids=["in turn", "own clock"])
def test_an_error_is_raised_where_the_result_is_asked_for_and_ends_nothing(device, error):
    def work():
        raise error

    failed, after = device.launch(work, 1), device.launch(lambda: 7, 1)
    failed.wait()
    with pytest.raises(type(error)):
        failed.result()
    assert after.result() == 7


def test_a_thread_works_while_the_host_goes_on():
    go, device = threading.Event(), OwnClock()
    launched = device.launch(lambda: go.wait(10), 1)
    assert isnan(launched.ended)  # the host is here, and the device waits for it
    go.set()
    assert launched.result() is True


def test_a_step_lasts_as_long_as_a_device_of_that_speed_needs():
    device = OwnClock(lambda num_tokens: 0.002 * num_tokens)
    launched = [device.launch(lambda: None, n) for n in (1, 3)]
    launched[-1].wait()
    for step, seconds in zip(launched, (0.002, 0.006), strict=True):
        assert step.ended - step.began >= seconds - 1e-9


def test_a_step_begins_when_the_one_before_is_over_however_late_the_thread_comes_to_it():
    """The thread of a device that computes with Python waits for the host's. A clock would not."""
    device = OwnClock(lambda num_tokens: 0.01)
    first, second = (device.launch(lambda: None, 1) for _ in range(2))
    second.wait()
    assert second.began == first.ended
    sleep(0.001)
    late = device.launch(lambda: None, 1)
    late.wait()
    assert late.began == late.launched > second.ended


def test_work_longer_than_the_step_it_stands_for_ends_when_it_is_done():
    launched = OwnClock(lambda num_tokens: 0.0).launch(lambda: sleep(0.002) or perf_counter(), 1)
    assert launched.result() <= launched.ended


def test_a_speed_that_cannot_be_computed_is_the_launching_threads_error():
    with pytest.raises(ZeroDivisionError):
        OwnClock(lambda num_tokens: 1 / num_tokens).launch(lambda: None, 0)
