"""read_share: what a reader read off a trace is compared with that trace."""

from __future__ import annotations

import numpy as np
import pytest

from course.teach import read_share
from roseinfer.profiling import Trace


def span(name, start, length):
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}


STEP = "roseinfer.decode_step_sessions"
EVENTS = [
    span(f"{STEP}.total", 0, 200),
    span(f"{STEP}.build_batched_past", 0, 60),
    span("roseinfer.kv.append_token", 190, 4),
    span(f"{STEP}.total", 300, 100),  # the second step does not count
    span(f"{STEP}.build_batched_past", 300, 90),
]
TRACE = Trace({"traceEvents": EVENTS})


def test_without_an_answer_it_asks_and_does_not_tell():
    asked = read_share(TRACE, "build_batched_past")
    assert repr(asked) == "percent of the first step in build_batched_past, read off the timeline: none yet"
    assert "in place of <code>None</code>" in asked.to_html() and "30" not in asked.to_html()


@pytest.mark.parametrize("answer", [25, 30, 34.9, np.float32(30)])
def test_an_answer_within_five_points_is_right(answer):
    told = read_share(TRACE, "build_batched_past", answer).to_html()
    assert f"you read {answer:g}, and the trace has 30%." in told


@pytest.mark.parametrize(
    ("span", "answer", "reason"),
    [
        ("build_batched_past", 0.3, "It looks like a fraction: percent are 100 times as much."),
        ("append_token", 0.02, "It looks like a fraction: percent are 100 times as much."),
        ("build_batched_past", 70, "It looks like the share of all the rest."),
        ("build_batched_past", 36, "Divide the length of its bar by that of <code>total</code>."),
        ("append_token", 9, "Divide the length of its bar by that of <code>total</code>."),
    ],
)
def test_a_wrong_answer_is_named_and_the_number_is_not_told(span, answer, reason):
    told = read_share(TRACE, span, answer).to_html()
    assert f"you read {answer:g}, which is not within 5 of the trace's number." in told and reason in told
    assert "the trace has" not in told and "**" not in told


def test_with_an_answer_the_text_is_the_same_whether_it_is_right():
    assert repr(read_share(TRACE, "append_token", 2)) == repr(read_share(TRACE, "append_token", 90))


def test_spans_outside_of_the_first_step_are_not_in_it():
    prefill = span("roseinfer.model.forward", -50, 40)
    trace = Trace({"traceEvents": [prefill, *EVENTS]})
    with pytest.raises(ValueError, match="got 'forward'"):
        read_share(trace, "forward")


@pytest.mark.parametrize("events", [[], [span("roseinfer.kv.append_token", 0, 5)], [span(f"{STEP}.total", 0, 0)]])
def test_a_trace_without_a_step_is_told(events):
    with pytest.raises(ValueError, match="trace must have a decode step"):
        read_share(Trace({"traceEvents": [*events, span("other", 0, 9)]}), "append_token")


def test_bad_input_is_told():
    with pytest.raises(ValueError, match="span must be one of total, build_batched_past, append_token, got 'forward'"):
        read_share(TRACE, "forward")
    for answer in ("30", True, -3, 101, float("nan")):
        with pytest.raises(ValueError, match="answer must be a number of percent, from 0 to 100, got"):
            read_share(TRACE, "append_token", answer)
