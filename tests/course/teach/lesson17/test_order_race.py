"""race_orders: exact steps in text/plain, times and what follows from them in the live view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from notebook_text import table
from oracles import small_model

from course.teach.lesson17 import order_race
from roseinfer.arrivals import at_once
from roseinfer.bench.online import serve
from roseinfer.bench.workload import with_prompts
from roseinfer.engine.policies import LongestOutput
from roseinfer.simulator import EngineSetting, measure

SETTING = EngineSetting(num_blocks=7, block_size=8, max_num_seqs=3, max_model_len=64)
ARRIVALS = at_once(8, prompt_lens=(2, 9), output_lens=(2, 30), seed=1)


class UnitCost:
    about = "a second a step"

    def seconds(self, work):
        return 0.0, 1.0

    def to_dict(self):
        return {}


@pytest.fixture(scope="module")
def raced():
    """By a clock that goes on by a second whenever it is asked: a step is a few of them, the same for every policy."""
    now, policies = iter(range(10**9)), {"fcfs": "fcfs", "mine": LongestOutput}
    return order_race.race_orders(
        small_model(), SETTING, ARRIVALS, policies, UnitCost(), clock=lambda: float(next(now))
    )


def test_steps_are_those_of_the_engine(raced):
    rows = table(repr(raced))[1]
    assert [row["policy"] for row in rows] == ["fcfs", "mine"]
    for row, policy in zip(rows, ("fcfs", "longest_output"), strict=True):
        engine = measure.real_engine(small_model(), replace(SETTING, scheduling_policy=policy))
        real = serve(engine, with_prompts(ARRIVALS, small_model()))
        assert (int(row["steps"]), int(row["preempted"])) == (len(real.steps), real.counters["preemptions"])
    assert int(rows[0]["preempted"]) > 0


def test_times_and_verdicts_are_in_the_live_columns(raced):
    first, mine = raced.df.to_dict("records")
    assert (mine["real s"] < first["real s"]) == (mine["steps"] < first["steps"])  # a clock of steps
    assert (mine["against the first"] == "faster in 5 of 5 runs") == (mine["real s"] < first["real s"])
    assert first["against the first"] == ""
    assert "real s" in raced.to_html() and "real s" not in repr(raced)
