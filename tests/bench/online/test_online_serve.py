"""Requests served by the clock: when they come, what is kept of them, Ctrl-C, and that nothing of a run stays."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest
from oracles import prompts_of

from roseinfer.arrivals import Arrival
from roseinfer.bench.online import serve
from roseinfer.engine.calls import noted_interrupts
from roseinfer.engine.engine import Engine
from roseinfer.models import GPT2
from roseinfer.reference import reference_generate


class FakeClock:
    """Stands still but in a step, which takes a second, and in sleep."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def engine_of(model: GPT2, clock: FakeClock, during: Callable[[], None] = lambda: None, **sizes) -> Engine:
    """during: called inside each step."""
    engine = Engine(model, **{"num_blocks": 16, "block_size": 4, "max_num_seqs": 4} | sizes)
    engine.metrics.clock, launch = clock, engine.runner.launch

    def timed_launch(step):
        clock.now += 1
        during()
        launch(step)

    engine.runner.launch = timed_launch
    return engine


def work_of(model: GPT2, *arrivals: Arrival) -> list[tuple[Arrival, list[int]]]:
    return list(zip(arrivals, prompts_of([a.prompt_len for a in arrivals], model.config.vocab_size), strict=True))


def test_requests_come_when_they_are_due_and_not_before(small: GPT2):
    clock = FakeClock()
    work = work_of(small, Arrival(0, 5, 3), Arrival(1.5, 4, 2), Arrival(7.0625, 3, 1))
    served = serve(engine_of(small, clock), work, sleep=clock.sleep)
    seen = [([t.arrival, t.first_scheduled], [step.finish for step in t.steps]) for t in served.requests]
    assert seen[0] == ([100, 100], [101, 102, 103])
    assert seen[1] == ([101.5, 102], [103, 104])  # it came in the middle of a step
    assert seen[2] == ([107.0625, 107.0625], [108.0625])
    assert sum(clock.slept) == pytest.approx(3.0625) and max(clock.slept) <= 0.05
    assert served.outputs == [reference_generate(small, [prompt], a.output_len)[0] for a, prompt in work]
    assert served.complete and served.seconds == 8.0625 and len(served.steps) == 5


def test_a_record_has_the_times_since_the_beginning_and_the_figures(small: GPT2):
    clock = FakeClock()
    record = serve(engine_of(small, clock), work_of(small, Arrival(0, 5, 3), Arrival(1.5, 4, 2)), sleep=clock.sleep)
    record = json.loads(json.dumps(record.record()))
    assert record["requests"] == [
        {"arrival": 0, "first_scheduled": 0, "finish": [1, 2, 3]},
        {"arrival": 1.5, "first_scheduled": 2, "finish": [3, 4]},
    ]
    assert record["steps"][0] == [0, 0, 1, 1, 5, 1, 1, 0] and len(record["steps"]) == 4
    assert (record["finished"], record["tokens"], record["seconds"]) == (2, 5, 4)
    assert (record["requests_per_second"], record["tokens_per_second"]) == (0.5, 1.25)
    assert record["metrics"]["ttft"]["max"] == 1.5 and record["counters"]["steps"] == 4


def test_interrupted_between_two_steps_every_block_is_free_and_the_rest_is_told(small: GPT2):
    clock = FakeClock()
    engine = engine_of(small, clock, max_num_seqs=2)
    work = work_of(small, Arrival(0, 5, 2), Arrival(0, 9, 6), Arrival(0, 9, 6), Arrival(50, 3, 1))
    served = serve(engine, work, stop=lambda: clock.now >= 103, sleep=clock.sleep)
    assert engine.blocks.num_free == 16 and not engine.has_work
    engine.blocks.check()
    assert not served.complete and served.num_requests == 4
    assert served.finished == [True, False, False] and [len(output) for output in served.outputs] == [2, 3, 1]
    assert [times.ended for times in served.requests] == [102, 103, 103]
    assert served.record()["requests_per_second"] == 1 / 3


def test_whatever_ends_a_run_nothing_of_it_stays(small: GPT2):
    def fail() -> None:
        if clock.now > 101:
            raise MemoryError("no more")

    clock = FakeClock()
    engine = engine_of(small, clock, fail)
    with pytest.raises(MemoryError):
        serve(engine, work_of(small, Arrival(0, 5, 3), Arrival(0, 4, 9)), sleep=clock.sleep)
    assert engine.blocks.num_free == 16 and not engine.has_work and not engine.metrics.live


def test_a_request_that_never_fits_is_refused_and_the_others_leave(small: GPT2):
    engine = engine_of(small, clock := FakeClock())
    with pytest.raises(ValueError, match="num_blocks=16"):
        serve(engine, work_of(small, Arrival(0, 5, 3), Arrival(1, 60, 30)), sleep=clock.sleep)
    assert engine.blocks.num_free == 16


def test_ctrl_c_is_heard_between_two_steps_and_the_second_one_at_once(small: GPT2):
    clock, seen = FakeClock(), []

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        seen.append(clock.now)

    engine = engine_of(small, clock, press)
    before = signal.getsignal(signal.SIGINT)
    with noted_interrupts() as stop:
        served = serve(engine, work_of(small, Arrival(0, 5, 3)), stop, clock.sleep)
        assert stop() and seen == [101] and served.finished == [False]
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is before and engine.blocks.num_free == 16
