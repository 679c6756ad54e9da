"""span and capture: names reach the trace, NVTX only when asked for, and a failing step leaves nothing running."""

import itertools
import os
import runpy
import threading

import pytest
import torch

from roseinfer.generate import begin
from roseinfer.profiling import capture, span, spans
from roseinfer.profiling.span_times import SpanTimes, TimedSpan
from roseinfer.profiling.spans import listening
from roseinfer.sequence import SamplingParams
from stages import BlockTableCache, SelectAppend


@pytest.fixture
def nvtx_calls(monkeypatch):
    """Everything that is pushed to (or popped from) NVTX."""
    calls = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    return calls


@pytest.mark.parametrize("asked, on_cuda", [(False, True), (True, False)])
def test_nvtx_is_not_called_unless_asked_for_on_cuda(monkeypatch, nvtx_calls, asked, on_cuda):
    monkeypatch.setattr(spans, "WANTS_NVTX", asked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_cuda)
    with span("a"):
        pass
    assert nvtx_calls == []


@pytest.mark.parametrize("value, asked", [(None, False), ("0", False), ("", False), ("1", True)])
def test_the_environment_asks_for_nvtx(monkeypatch, value, asked):
    monkeypatch.delenv("ROSEINFER_NVTX", raising=False)
    if value is not None:
        monkeypatch.setenv("ROSEINFER_NVTX", value)
    assert runpy.run_path(spans.__file__)["WANTS_NVTX"] is asked


def test_a_span_leaves_the_environment_alone(monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(os, "environ", None)
        with span("a"):
            pass


def test_nvtx_pushes_and_pops_in_pairs_even_when_the_code_fails(monkeypatch, nvtx_calls):
    monkeypatch.setattr(spans, "WANTS_NVTX", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="inside"), span("outer"), span("inner"):
        raise RuntimeError("inside")
    assert nvtx_calls == ["outer", "inner", "pop", "pop"]


STEP = "roseinfer.decode_step_sessions."
FORWARD, APPEND = ["roseinfer.model.forward", "pop"], ["roseinfer.kv.append_token", "pop"]


def decoding(stage_class, model):
    """A stage and two sequences of unequal length, ready for a decode step."""
    stage = stage_class(model, num_blocks=4)
    return stage, begin(stage, [[1, 2, 3], [4]], SamplingParams(max_tokens=4, ignore_eos=True))


@pytest.mark.parametrize(
    ("stage_class", "build"),
    [
        (SelectAppend, [f"{STEP}build_batched_past", "pop"]),
        (BlockTableCache, [f"{STEP}build_block_tables", "pop", f"{STEP}h2d_block_tables", "pop"]),
    ],
    ids=["dense", "paged"],
)
def test_a_decode_step_pushes_the_posts_ranges(monkeypatch, nvtx_calls, small, stage_class, build):
    stage, seqs = decoding(stage_class, small)
    monkeypatch.setattr(spans, "WANTS_NVTX", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    stage.decode(seqs)
    assert nvtx_calls == [f"{STEP}total", *build, *FORWARD, *APPEND, "pop"]


def test_span_times_keep_what_they_are_asked_for_in_the_order_of_its_ends():
    times = SpanTimes(lambda name, around: around == "outer" or name == "last", itertools.count().__next__)
    with listening(times), span("outer"):
        with span("inner"), span("deep"):
            pass
        with pytest.raises(RuntimeError), span("fails"):
            raise RuntimeError
    assert times.kept == [TimedSpan("inner", 0, 1), TimedSpan("fails", 2, 3)]
    assert [each.seconds for each in times.take()] == [1, 1] and times.take() == []


def test_prefill_and_decode_name_their_forward(small):
    times = SpanTimes(lambda name, around: name == "roseinfer.model.forward")
    stage, seqs = decoding(SelectAppend, small)
    with listening(times):
        stage.decode(seqs)
        begin(stage, [[1, 2]], SamplingParams(max_tokens=1))
    assert len(times.kept) == 2


def test_capture_records_the_last_steps_and_says_where():
    calls = []

    def step():
        with span("roseinfer.step"):
            calls.append(torch.ones(2))

    trace = capture(step, steps=2, warmup=3)
    assert len(calls) == 1 + 3 + 2
    assert trace.count("roseinfer.step") == 2
    assert trace.count("aten::ones") == 2
    assert trace.metadata["steps"] == 2
    assert trace.metadata["warmup"] == 3
    assert trace.metadata["torch"] == torch.__version__
    assert trace.metadata["device"]


def test_record_shapes_puts_shapes_in_args():
    trace = capture(lambda: torch.ones(2, 3) + 1, steps=1, warmup=1, record_shapes=True)
    found = trace.sql("SELECT args FROM slice WHERE name='aten::add'")["args"]
    assert "[2, 3]" in found[0]


def test_capture_prints_nothing(capfd):
    capture(lambda: torch.ones(2), steps=1, warmup=1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("failing_call", [1, 3, 4])  # before profiling, while warming up, while recording
def test_an_error_propagates_and_the_profiler_stops(failing_call):
    calls = []

    def step():
        calls.append(None)
        if len(calls) == failing_call:
            raise KeyError("from the step")

    with pytest.raises(KeyError, match="from the step"):
        capture(step, steps=2, warmup=2)
    assert not torch.autograd._profiler_enabled()
    assert capture(lambda: torch.ones(1), steps=1, warmup=1).count("aten::ones") == 1


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 1.5}, {"steps": True}, {"warmup": -1}, {"warmup": "2"}])
def test_bad_counts_are_refused_before_the_step_runs(wrong):
    (argument,) = wrong
    with pytest.raises(ValueError, match=f"{argument} must be an integer of at least"):
        capture(lambda: pytest.fail("the step ran"), **wrong)


class Heard(list):
    def enter(self, name):
        self.append(name)

    def exit(self, name):
        self.append(f"end of {name}")


def test_a_listener_hears_spans_inside_each_other_and_those_that_fail():
    heard = Heard()
    with span("before"):
        pass
    with listening(heard):
        with pytest.raises(RuntimeError), span("outer"), span("inner"):
            raise RuntimeError
        with span("next"):
            pass
    with span("after"):
        pass
    assert heard == ["outer", "inner", "end of inner", "end of outer", "next", "end of next"]


def test_another_threads_spans_are_not_heard():
    heard = Heard()

    def work():
        with span("theirs"):
            pass

    with listening(heard):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert heard == []
