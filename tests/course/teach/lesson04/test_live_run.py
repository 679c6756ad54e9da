"""A live run: however it ends, nothing stays held, and it is redrawn often enough. No real times."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from live_runs import LONG, Made, Ticking, a_panel, assert_all_free, live, shown

from course.teach.lesson04 import live_run
from course.teach.lesson04.dashboard import ALREADY
from course.teach.lesson04.live_batch import phase_seconds, step_spans
from course.teach.lesson04.live_run import REPORT_SECONDS, LiveRun, RunSettings
from roseinfer.bench.contenders import ContenderFailed
from roseinfer.models import GPT2
from roseinfer.profiling import span
from roseinfer.profiling.spans import listening
from stages import NaiveCat

pytestmark = pytest.mark.usefixtures("on_a_known_machine")


# the end of a run


@pytest.mark.parametrize("moment", ["load", "make", "prefill 0", "prefill 1", "decode 0", "decode 3", "decode 4"])
def test_stop_frees_every_block_at_any_moment(monkeypatch, small: GPT2, moment):
    panel = a_panel(Made, repeat=True)

    def stop_at(now: str) -> None:
        if now == moment:
            panel.stop()

    def load(*args):
        stop_at("load")
        return small

    class Stopping(Made):
        def __init__(self, *args, **sizes):
            super().__init__(*args, **sizes)
            self.calls = {"prefill": 0, "decode": 0}
            stop_at("make")

        def count(self, call):
            stop_at(f"{call} {self.calls[call]}")
            self.calls[call] += 1

        def prefill(self, seq):
            self.count("prefill")
            return super().prefill(seq)

        def decode(self, seqs):
            self.count("decode")
            return super().decode(seqs)

    monkeypatch.setattr(live_run, "load_model", load)
    panel.stages.options, panel.stages.value = [("stopping", Stopping)], (Stopping,)
    panel.start()
    assert panel.wait(LONG)
    assert (panel.run.status, panel.run.error, panel.run.running) == ("stopped", None, False)
    assert panel.message == ""
    if moment != "load":
        assert len(Made.made) == 1, "the batch that was stopped is the last one"
        assert "every block is free" in live(panel)
        assert_all_free()
    assert (panel._start.disabled, panel._stop.disabled) == (False, True)


def test_a_second_start_is_refused_and_a_later_one_is_not():
    reached, go_on = threading.Event(), threading.Event()

    class Waiting(Made):
        def build(self, seqs):
            reached.set()
            assert go_on.wait(LONG)
            return super().build(seqs)

    panel = a_panel(Waiting)
    panel.start()
    assert reached.wait(LONG)
    first = panel.run
    panel.start()
    assert panel.run is first and shown(panel.message) == ALREADY
    assert (panel._start.disabled, panel._stop.disabled) == (True, False)
    go_on.set()
    assert panel.wait(LONG) and panel.message == ""
    panel.start()
    assert panel.run is not first and panel.wait(LONG)
    assert [run.status for run in (first, panel.run)] == ["finished", "finished"]
    assert_all_free()


def test_another_panels_start_ends_the_run_of_the_first():
    first, second = a_panel(Made, repeat=True), a_panel(Made)
    first.start()
    second.start()
    assert second.wait(LONG) and first.wait(LONG)
    assert (first.run.status, second.run.status) == ("stopped", "finished")
    assert_all_free()


def test_an_error_in_a_stage_is_told_and_everything_is_freed():
    class Broken(Made):
        name = "<b>roken"

        def append(self, seqs, step):
            if seqs[0].num_cached_tokens > 5:
                raise IndexError("list index out of range")
            super().append(seqs, step)

    panel = a_panel(Broken)
    panel.start()
    assert panel.wait(LONG)
    assert isinstance(panel.run.error, ContenderFailed)
    told = shown(panel.message)
    assert told.startswith("ContenderFailed: <b>roken failed in decode step 2: IndexError: list index out of range")
    assert "in append raise IndexError" in told
    assert "failed: <b>roken, decode step 2 of 5 blocks held: 0 of 2, every block is free" in live(panel)
    assert_all_free()
    panel.stages.options, panel.stages.value = [("whole", Made)], (Made,)
    panel.start()
    assert panel.wait(LONG) and panel.run.error is None and panel.message == ""


def test_a_stage_that_keeps_its_blocks_is_named():
    class Keeps(NaiveCat):
        def free(self, seq):
            pass

    panel = a_panel(Keeps)
    panel.start()
    assert panel.wait(LONG)
    assert "Keeps lost blocks: 0 of 2 are free with all sequences freed" in shown(panel.message)
    assert "blocks held: 2 of 2, 0 free" in live(panel)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("model", "random:gpt3", "unknown shape 'random:gpt3', allowed: random:gpt2"),
        ("model", "./nowhere", "no such folder: './nowhere'"),
        ("max_new_tokens", 189, "prompt_len=4 + max_new_tokens=189 is 193 tokens, allowed: max_model_len=192"),
    ],
    ids=["shape", "folder", "length"],
)
def test_what_only_the_model_can_refuse_is_told_in_the_panel(field, value, says):
    panel = a_panel()
    getattr(panel, field).value = value
    panel.start()
    assert panel.wait(LONG)
    assert says in shown(panel.message) and panel.run.status == "failed"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("stages", (), "stages: choose at least one"),
        ("model", " ", "model must be a spec such as 'tiny', got ''"),
        ("batch_size", -1, "batch_size must be an integer of at least 1, got -1"),
        ("prompt_len", 0, "prompt_len must be an integer of at least 1, got 0"),
        ("max_new_tokens", 1, "max_new_tokens must be an integer of at least 2, got 1"),
    ],
    ids=["stages", "model", "batch_size", "prompt_len", "max_new_tokens"],
)
def test_a_bad_choice_is_told_before_anything_runs(field, value, says):
    panel = a_panel()
    getattr(panel, field).value = value
    panel.start()
    assert (shown(panel.message), panel.run) == (says, None)


def test_a_closed_tab_holds_nothing_up():
    class Closing(Made):
        def build(self, seqs):
            panel._live.close()
            panel.close()
            return super().build(seqs)

    panel = a_panel(Closing)
    panel.start()
    assert panel.wait(LONG)
    assert (panel.run.status, panel.run.error) == ("finished", None)
    assert_all_free()


def test_an_interrupted_wait_stops_the_run(monkeypatch):
    panel = a_panel(Made, repeat=True)
    panel.start()

    def interrupted(timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(panel.run, "wait", interrupted)
        panel.wait()
    assert panel.wait(LONG) and panel.run.status == "stopped"
    if Made.made:  # the thread may not have come to that
        assert_all_free()


# how often it is redrawn


def report_times(tick: float) -> tuple[list[float], int]:
    """When a run of 180 new tokens was drawn, and its decode steps."""
    clock, times = Ticking(tick), []
    settings = RunSettings((NaiveCat,), "small", 2, 4, 180, "float32")
    run = LiveRun(settings, lambda run: times.append(clock.now), clock)
    run.start()
    assert run.wait(LONG) and run.error is None
    return times, len(run.current.steps)


@pytest.mark.parametrize("tick", [1e-3, 5e-3, 1e-2])
def test_at_least_four_updates_a_second_and_never_one_a_step(tick):
    times, steps = report_times(tick)
    assert all(late - early <= 0.25 for early, late in pairwise(times))
    assert all(late - early >= REPORT_SECONDS / 2 for early, late in pairwise(times[2:-1]))
    assert len(times) < steps


def test_slow_steps_are_each_shown():
    times, steps = report_times(1.0)
    assert len(times) >= steps


# its phases


def test_phases_are_the_spans_right_inside_a_step():
    spans = step_spans(Ticking(1.0))
    with listening(spans):
        with span("roseinfer.prefill"), span("roseinfer.model.forward"):
            pass
        with span("roseinfer.decode_step_sessions.total"):
            with span("roseinfer.decode_step_sessions.build_block_tables"):
                pass
            with span("roseinfer.decode_step_sessions.h2d_block_tables"):
                pass
            with span("roseinfer.model.forward"), span("my.attention"):
                pass
            with span("my.append"):
                pass
    assert phase_seconds(spans.take()) == {"build": 2.0, "forward": 1.0, "my.append": 1.0}
    assert spans.take() == []
