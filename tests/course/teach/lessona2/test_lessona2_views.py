"""Notebook a2: how results are compared, traces drawn, pictures made and programs run."""

from __future__ import annotations

import pytest

from course import teach
from course.teach.lessona2.click_timeline import nested_events
from course.teach.lessona2.events import FORWARD, described, draw_host, kernel, op, span
from course.teach.lessona2.query_bench import Rows, explain_rows, run_query
from course.teach.lessona2.reads_picture import DEVICE, HOST, PROGRAMS, end_of, run_program
from course.teach.lessona2.self_time_picture import EXAMPLE, self_us
from roseinfer.profiling import Trace

# How results are compared, and traces drawn


def test_numbers_of_any_type_and_columns_in_any_order_are_the_same():
    explain = explain_rows(is_ordered=True)
    want = Rows(("name", "n"), [("a", 2), ("b", 1)])
    assert explain(Rows(("n", "name"), [(2.0, "a"), (1, "b")]), want) is None
    assert explain(Rows(("name", "n"), [("b", 1), ("a", 2)]), want).startswith("the rows are right, their order is not")
    assert explain_rows(is_ordered=False)(Rows(("name", "n"), [("b", 1), ("a", 2)]), want) is None


def test_a_trace_is_described_by_its_threads():
    events = [span(0, 9), op("cat", 2, 5), kernel(3, 8)]
    assert described(events) == (
        "in the trace (in µs) tid 1: `roseinfer.model.forward` (user_annotation) 0..9, `aten::cat` 2..5; "
        "tid 7: `gemm` (kernel) 3..8"
    )
    assert described([]) == "in an empty trace"


@pytest.mark.parametrize("seed", range(30))
def test_drawn_events_lie_inside_one_another_or_apart(seed):
    import random

    events = draw_host(random.Random(seed))
    for i, one in enumerate(events):
        for other in events[i + 1 :]:
            if one.tid == other.tid:
                assert other.ts >= one.end or (other.end <= one.end and other.dur < one.dur)


def test_the_bench_has_the_rows_that_a_trace_of_these_events_has():
    events = [span(0, 9), op("cat", 2, 5), op("cat", 6, 7, tid=2)]
    chrome = [{"ph": "X", "pid": 1, **event._asdict()} for event in events]
    query = "SELECT id, ts, dur, cat, name, tid, pid FROM slice ORDER BY id"
    columns, rows = Trace({"traceEvents": chrome}).rows(query)
    assert run_query(query, events) == Rows(tuple(columns), rows)
    assert run_query(query, events[:1]).rows == rows[:1]


# Pictures and runs


def test_self_times_add_up_to_the_whole():
    assert sum(map(self_us, EXAMPLE)) == EXAMPLE[0].dur
    picture = teach.walk_self_time()
    assert repr(picture).splitlines()[1] == "aten::linear: inclusive 14 µs, self 14 - 2 - 9 = 3 µs"
    assert "aten::zeros: inclusive 9 µs, self 9 - 2 - 4 = 3 µs" in picture.texts(5)


@pytest.mark.parametrize("reads", PROGRAMS.values(), ids=list(PROGRAMS))
def test_a_program_launches_in_turn_and_computes_what_was_launched(reads):
    bars = run_program(reads)
    for row in (HOST, DEVICE):
        own = [bar for bar in bars if bar.row == row]
        assert all(before.end <= after.begin for before, after in zip(own, own[1:], strict=False))
    launched = {bar.op: bar.end for bar in bars if bar.what == "launch"}
    computed = {bar.op: bar for bar in bars if bar.what == "compute"}
    assert all(computed[number].begin >= launched[number] for number in launched)
    later = [bar.begin for bar in bars if bar.what == "launch" and bar.op - 1 in reads]
    assert all(begin >= computed[number].end for begin, number in zip(later, reads, strict=False))


def test_reading_each_result_adds_up_host_and_device():
    assert end_of(run_program(range(6))) == 6 * (2 + 3)
    assert end_of(run_program([5])) == 2 + 6 * 3


def test_the_picture_of_reads_says_what_both_do():
    picture = teach.walk_reads()
    assert "12 ms: the host waits for the result of op 5, the device computes op 3" in picture.texts(12)
    assert picture.lengths == {name: end_of(run_program(reads)) + 1 for name, reads in PROGRAMS.items()}


def trace_of(*events):
    return Trace({"traceEvents": [{"ph": "X", "pid": 1, **event._asdict()} for event in events]})


NESTED = [span(0, 30), op("linear", 2, 16), op("t", 3, 5), op("addmm", 6, 15), op("copy_", 8, 11), op("zeros", 19, 28)]


def test_a_timeline_to_click_on_has_what_runs_inside_the_shortest_span():
    longer = [event._replace(ts=event.ts + 200) for event in (span(0, 50), op("cat", 1, 2))]
    other = [op("mm", 5, 8, tid=2), op("linear", 31, 40)]
    found = nested_events(trace_of(*NESTED, *other, *longer), FORWARD)
    assert found["name"].tolist() == [event.name for event in NESTED]
    assert found["parent"].tolist() == [-1, 0, 1, 1, 3, 0]
    assert found["depth"].tolist() == [0, 1, 2, 2, 3, 1]
    assert found["says"][1] == "aten::linear: inclusive 14.0 µs, self 3.0 µs"
    assert found["says"][0] == f"{FORWARD}: inclusive 30.0 µs, self 7.0 µs"


def test_a_span_inside_a_step_and_beside_other_events_is_drawn_from_its_own_start():
    step = span(0, 60, name="roseinfer.decode_step_sessions.total")
    moved = [event._replace(ts=event.ts + 20) for event in NESTED]
    found = nested_events(trace_of(step, op("cat", 3, 9), *moved), FORWARD)
    assert found["parent"].tolist() == [-1, 0, 1, 1, 3, 0] and found["from"].tolist()[:2] == [0, 2]
    picture = teach.click_timeline(trace_of(step, *moved))
    assert repr(picture) == f"the shortest {FORWARD}: 6 events, 4 deep"
    assert picture.alt.endswith("aten::linear: inclusive 14.0 µs, self 3.0 µs")


def test_what_a_trace_does_not_have_cannot_be_clicked():
    with pytest.raises(ValueError, match="span must be in the trace, got 'roseinfer.prefill'"):
        teach.click_timeline(trace_of(*NESTED), span="roseinfer.prefill")
    with pytest.raises(ValueError, match="first must be an event inside roseinfer.model.forward, got 'aten::cat'"):
        teach.click_timeline(trace_of(*NESTED), first="aten::cat")


def test_a_run_with_reads_is_a_trace():
    trace = teach.trace_reads(num_ops=3, host_ms=0.2, device_ms=0.5)
    counts = trace.rows("SELECT name, COUNT(*) FROM slice GROUP BY name ORDER BY name")[1]
    assert counts == [
        ("aten::item", 4),
        ("aten::mm", 6),
        ("gemm", 6),
        ("roseinfer.read_after_each", 1),
        ("roseinfer.read_at_the_end", 1),
    ]
    assert "a thread with a clock of its own (0.5 ms per op)" in trace.caption
    order = trace.rows("SELECT name, ts, ts + dur FROM slice WHERE cat = 'kernel' ORDER BY id")[1]
    assert all(before[2] <= after[1] + 1000 for before, after in zip(order, order[1:], strict=False))
