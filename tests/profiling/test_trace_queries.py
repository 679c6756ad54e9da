"""data/posts/000/*.sql: the post's numbers where the post asks, and exact answers where it would count twice."""

from pathlib import Path

import pytest
from trace_cases import APPEND, BUILD, FORWARD, POST_QUERIES, STEP, event

from course.posts.data import POSTS
from roseinfer.profiling import Trace

FOLDER = POSTS / "000"
FILES = sorted(path.stem for path in FOLDER.glob("*.sql"))


def ask(trace: Trace, name: str) -> list[dict[str, object]]:
    columns, rows = trace.rows((FOLDER / f"{name}.sql").read_text(encoding="utf-8"))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def traced(*events) -> Trace:
    return Trace({"traceEvents": [event(STEP, 0, 100), *events]})


def op(name, ts, dur, **where):
    return event(f"aten::{name}", ts, dur, cat="cpu_op", **where)


# --- the post's questions ---


def test_spans_agree_with_the_posts_query(live, on_a_gpu):
    for trace in (live, on_a_gpu):
        sides = {"user_annotation": "host", "gpu_user_annotation": "device"}
        post = {(sides[cat], *rest) for cat, *rest in trace.rows(POST_QUERIES["overview"])[1]}
        assert {tuple(row.values())[:5] for row in ask(trace, "spans")} == post


@pytest.mark.parametrize("name, question", [("gather_ops", "ops in build"), ("append_ops", "ops in append")])
def test_ops_agree_with_the_posts_query(live, name, question):
    post = set(live.rows(POST_QUERIES[question])[1])
    assert {tuple(row.values())[:4] for row in ask(live, name)} == post
    assert len(post) > 2


@pytest.mark.parametrize(
    "name, question", [("gather_allocations", "named ops in build"), ("append_views", "named ops in append")]
)
def test_chosen_ops_agree_with_the_posts_query(live, name, question):
    ours = ask(live, name)
    post = set(live.rows(POST_QUERIES[question])[1])
    assert {tuple(row.values())[:3] for row in ours if row["calls"]} == post
    assert len(post) > 2


def test_a_chosen_op_that_is_never_called_is_a_row_of_zeros(live):
    rows = {row["op"]: tuple(row.values())[1:] for row in ask(live, "gather_allocations")}
    assert rows["aten::cat"] == (0, 0.0, 0.0)
    assert len(rows) == 6


# --- the traps ---


def test_time_in_spans_inside_is_not_counted_twice(on_a_gpu):
    rows = {(row["side"], row["span"]): row for row in ask(on_a_gpu, "spans")}
    self_ms = {key: row["self_ms"] for key, row in rows.items()}
    assert self_ms == {
        ("host", STEP): pytest.approx(0.04),
        ("host", FORWARD): pytest.approx(0.06),
        ("host", BUILD): pytest.approx(0.06),
        ("host", "roseinfer.model.attention"): pytest.approx(0.04),
        ("device", FORWARD): pytest.approx(0.08),
    }
    assert rows["host", STEP]["ms_per_step"] == pytest.approx(0.1)


def test_spans_without_a_decode_step_have_no_time_a_step():
    (row,) = ask(Trace({"traceEvents": [event(FORWARD, 0, 8)]}), "spans")
    assert (row["total_ms"], row["ms_per_step"]) == (0.008, None)


@pytest.mark.parametrize("name, span", [("gather_ops", BUILD), ("append_ops", APPEND)])
def test_ops_count_on_the_spans_thread_and_without_the_ops_they_call(name, span):
    trace = traced(
        event(span, 10, 30),
        op("slice", 12, 4),
        op("as_strided", 13, 1),
        op("slice", 16, 5),  # starts as the one before ends
        op("as_strided", 16, 2),  # starts with its caller
        op("slice", 39, 20),  # ends after the span
        op("mm", 20, 9, tid=2),
        op("mm", 40, 1),  # starts as the span ends
        event(span, 60, 10),
        op("slice", 62, 1),
    )
    assert [tuple(row.values()) for row in ask(trace, name)] == [
        ("aten::slice", 3, 0.029, pytest.approx(29 / 3), 0.026),
        ("aten::as_strided", 2, 0.003, 1.5, 0.003),
    ]


def test_chosen_ops_add_up():
    trace = traced(
        event(BUILD, 10, 30),
        op("zeros", 12, 8),
        op("empty", 13, 2),
        op("zero_", 15, 4),
        op("copy_", 21, 5),
        event(APPEND, 50, 30),
        op("select", 51, 3),
        op("as_strided", 52, 1),
        op("copy_", 55, 2),
    )
    gather = {row["op"]: (row["calls"], row["outermost_ms"]) for row in ask(trace, "gather_allocations")}
    assert gather["aten::zeros"] == (1, 0.008)
    assert gather["aten::empty"] == (1, 0.0)  # inside zeros
    assert gather["aten::copy_"] == (1, 0.005)
    append = {row["op"]: (row["calls"], row["outermost_ms"]) for row in ask(trace, "append_views")}
    assert append == {
        "aten::select": (1, 0.003),
        "aten::copy_": (1, 0.002),
        "aten::as_strided": (1, 0.0),
        "aten::slice": (0, 0.0),
    }


# --- questions of our own ---


def test_self_time_adds_up_to_the_step():
    trace = traced(
        op("linear", 10, 20),
        op("t", 10, 0),  # no time at all, and still inside its caller
        op("addmm", 12, 15),
        op("copy_", 13, 5),
        op("linear", 30, 10),  # starts as the one before ends
        op("addmm", 33, 7),
        op("mm", 20, 30, tid=2),
        op("outside", 150, 5),
        event(STEP, 200, 100),
        op("linear", 210, 30),
        event(STEP, 20, 60, tid=2),  # another thread's step
    )
    assert [tuple(row.values()) for row in ask(trace, "self_time")] == [
        ("(no op)", None, pytest.approx(0.07), pytest.approx(140 / 200)),
        ("aten::linear", 1.5, pytest.approx(0.019), pytest.approx(38 / 200)),
        ("aten::addmm", 1.0, pytest.approx(0.0085), pytest.approx(17 / 200)),
        ("aten::copy_", 0.5, pytest.approx(0.0025), pytest.approx(5 / 200)),
        ("aten::t", 0.5, 0.0, 0.0),
    ]


def test_self_time_of_a_live_trace_is_that_of_its_ops_alone(live):
    rows = ask(live, "self_time")
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert all(row["share"] >= 0 for row in rows)
    calls = {row["op"]: row["calls_per_step"] for row in rows}
    assert (calls["aten::copy_"], calls["aten::tanh"]) == (7, 1)


def launch(name, ts, correlation, cat="cuda_runtime"):
    return event(name, ts, 1, cat=cat, correlation=correlation)


def work(name, ts, dur, correlation, cat="kernel", stream=7):
    return event(name, ts, dur, cat=cat, pid=0, tid=stream, correlation=correlation)


def test_device_work_belongs_to_the_step_that_launched_it():
    trace = traced(
        launch("cudaLaunchKernel", 10, 1),
        launch("cuLaunchKernel", 20, 2, cat="cuda_driver"),
        launch("cudaMemcpyAsync", 30, 3),
        launch("cudaStreamSynchronize", 40, 4),  # starts no work
        launch("cudaLaunchKernel", 150, 9),  # between the steps
        event(STEP, 200, 100),
        launch("cudaGraphLaunch", 210, 5),
        work("a", 50, 20, 1),
        work("b", 60, 30, 2, stream=8),  # at the same time as a: busy 50..90
        work("copy", 95, 10, 3, cat="gpu_memcpy"),  # after a gap of 5, and past the end of the step
        work("warm-up", 160, 10, 9),
        work("c", 225, 10, 5),  # after a gap of 120
        work("d", 236, 10, 5),  # one launch, two kernels
        event(STEP, 400, 50),
    )
    assert [tuple(row.values()) for row in ask(trace, "device_steps")] == [
        (1, 0.1, 3, 2, 1, 0.05, 0.005, 5.0),
        (2, 0.1, 1, 2, 0, 0.02, 0.121, 120.0),
        (3, 0.05, 0, 0, 0, None, None, None),
    ]


# --- the files ---


def test_there_is_a_query_for_each_question():
    assert FILES == [
        "append_ops",
        "append_views",
        "device_steps",
        "gather_allocations",
        "gather_ops",
        "self_time",
        "spans",
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_query_begins_with_its_question_and_names_tables_that_are_here(name):
    question, beside, *_ = Path(FOLDER / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    assert question.startswith("-- ") and question.endswith("?")
    assert beside.startswith("-- Beside: ")
    tables = [word.strip(",;.") for word in beside.split() if ".csv" in word]
    assert all((FOLDER / table).is_file() for table in tables)
    assert bool(tables) == (name not in ("self_time", "device_steps"))


@pytest.mark.parametrize("name", FILES)
def test_a_query_runs_on_a_trace_that_has_none_of_it(name):
    rows = ask(Trace({"traceEvents": [event("train", 0, 10)]}), name)
    assert [row for row in rows if row.get("calls") != 0] == []
