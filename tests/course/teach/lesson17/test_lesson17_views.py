"""Lesson 17: how long requests wait, which of them waits, and blocks that are never freed."""

from __future__ import annotations

import pytest
from oracles import small_model

from course import teach
from course.posts.post002.aborts import abort_each, abort_the_set, stop_each
from roseinfer.arrivals import Arrival
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.simulator import EngineSetting
from roseinfer.simulator.replica import SimulatedRequest

MODEL = small_model()


def request(came, began, *tokens):
    one = SimulatedRequest(Arrival(came, 3, len(tokens)), 0)
    one.times = SequenceTimes(came, began, [StepRecord(finish=at) for at in tokens], tokens[-1])
    return one


RUNS = {
    "one": [request(0, 0, 1), request(0, 1, 2, 3), request(1, 3, 4, 5, 6)],
    "other": [request(0, 5, 6), request(0, 0, 1, 2), request(1, 2, 3, 4, 5)],
}


def test_times_of_each_policy():
    chart = teach.draw_times(RUNS, unit="steps")
    assert repr(chart).splitlines() == [
        "waiting_time (steps)",
        "one: p50 1.0, p90 2.0, p99 2.0, max 2.0",
        "other: p50 1.0, p90 5.0, p99 5.0, max 5.0",
    ]
    assert repr(teach.draw_times(RUNS, "ttft")).splitlines()[1] == "one: p50 2.0, p90 3.0, p99 3.0, max 3.0"
    assert chart.png[:4] == b"\x89PNG"


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match="^metric must be one of waiting_time, .*e2e_latency, got 'wait'$"):
        teach.draw_times(RUNS, "wait")


def test_whose_wait_it_is():
    chart = teach.draw_who_waits(RUNS, unit="steps")
    assert repr(chart).splitlines()[1:] == ["one: 0.0 and 2.0", "other: 5.0 and 1.0"]
    assert len(chart.spec["vconcat"]) == 1 and len(chart.spec["vconcat"][0]["hconcat"]) == 2


def test_a_simulation_by_steps():
    setting = EngineSetting(num_blocks=16, block_size=4, max_num_seqs=1, max_model_len=32)
    ends = {}
    for policy in ("fcfs", "longest_output"):
        requests = teach.simulate([Arrival(0, 3, 2), Arrival(0, 3, 5)], setting, policy).requests
        ends[policy] = [one.times.ended for one in requests]
    assert ends == {"fcfs": [2, 7], "longest_output": [7, 5]}


def test_half_an_abort_keeps_blocks_and_none_wastes_tokens():
    served = {
        abort.__name__: teach.serve_aborting(MODEL, abort, (3, 1)) for abort in (abort_the_set, stop_each, abort_each)
    }
    assert {name: (made, held[-1]) for name, (made, held) in served.items()} == {
        "abort_the_set": (6, 0),
        "stop_each": (4, 3),
        "abort_each": (4, 0),
    }
