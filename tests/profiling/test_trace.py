"""Trace: the post's SQL verbatim, the tables and files, on live and on synthetic traces."""

import gzip
import re

import pytest
import torch
from trace_cases import APPEND, BUILD, FORWARD, POST_QUERIES, STEP, event

from roseinfer.display import Table
from roseinfer.profiling import Trace
from roseinfer.profiling.traces.read_only import QueryError

# --- SQL ---


@pytest.mark.parametrize(
    "question, columns, expected",
    [
        ("ops in build", ["name", "n", "total_ms", "avg_us"], {"aten::copy_": 4, "aten::zeros": 1}),
        ("named ops in build", ["name", "n", "total_ms"], {"aten::copy_": 4, "aten::zeros": 1, "aten::empty": 1}),
        ("ops in append", ["name", "n", "total_ms", "avg_us"], {"aten::copy_": 3}),
        ("named ops in append", ["name", "n", "total_ms"], {"aten::copy_": 3, "aten::select": 12}),
        ("overview", ["cat", "name", "n", "total_ms", "avg_ms"], {STEP: 3, BUILD: 3, FORWARD: 3, APPEND: 3}),
    ],
)
def test_the_posts_queries_run_verbatim(live, question, columns, expected):
    df = live.sql(POST_QUERIES[question])
    assert list(df.columns) == columns
    counts = dict(zip(df["name"], df["n"], strict=True))
    assert {name: counts[name] for name in expected} == expected
    assert df["total_ms"].is_monotonic_decreasing


def test_slice_has_perfettos_columns_in_nanoseconds(on_a_gpu):
    types = on_a_gpu.sql("DESCRIBE slice").set_index("column_name")["column_type"].to_dict()
    assert types == {
        "id": "BIGINT",
        "ts": "BIGINT",
        "dur": "BIGINT",
        "cat": "VARCHAR",
        "name": "VARCHAR",
        "tid": "BIGINT",
        "pid": "BIGINT",
        "args": "JSON",
    }
    first = on_a_gpu.sql(f"SELECT id, ts, dur FROM slice WHERE name='{STEP}' ORDER BY ts").iloc[0]
    assert first.tolist() == [1, 1_000_125, 100_000]
    shapes = on_a_gpu.sql("SELECT args->'$.shape' AS shape FROM slice WHERE name='aten::addmm'")
    assert shapes["shape"].tolist() == ["[2,3]", "[2,3]"]
    # a label in place of a thread number must not break a comparison with a number
    assert on_a_gpu.sql("SELECT COUNT(*) AS n FROM slice WHERE tid = 7")["n"][0] == 6


@pytest.mark.parametrize("query", [None, 3])
def test_a_query_that_is_no_text_is_refused(live, query):
    with pytest.raises(ValueError, match=f"query must be a string of SQL, got {query}"):
        live.sql(query)


@pytest.mark.parametrize(
    "query, says, line",
    [
        ("\n\n  SELECT name,\n\t'é' || nosuch\nFROM slice;\n", 'column "nosuch" not found', "'é' || nosuch"),
        ('SELECT "x" FROM slice', "text stands in single quotes", 'SELECT "x" FROM slice'),
        ("  SELEC 1", "syntax error", "SELEC 1"),
    ],
)
def test_bad_sql_says_what_duckdb_said_and_points_at_the_place(live, query, says, line):
    with pytest.raises(QueryError, match=rf"(?s){says}.*\n *\^+$") as raised:
        live.sql(query)
    assert raised.value.line == line and f"{line}\n" in str(raised.value) and line not in raised.value.says


def test_an_error_without_a_place_has_no_caret(live):
    with pytest.raises(QueryError, match="^Invalid Input Error: stop here$"):
        live.sql("SELECT error('stop here') FROM slice")


def test_rows_are_as_exact_as_duckdb_has_them(on_a_gpu):
    assert on_a_gpu.rows("SELECT SUM(ts) AS ns, NULL AS no FROM slice WHERE id IN (1, 2)") == (
        ["ns", "no"],
        [(1_000_125 + 1_010_125, None)],
    )
    assert on_a_gpu.rows("SELECT 2::HUGEINT << 100 AS n")[1] == [(2 << 100,)]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "-- nothing",
        "SELECT 1; SELECT 2",
        "DROP TABLE slice",
        "INSERT INTO slice (name) VALUES ('x')",
        "CREATE TABLE mine AS FROM slice",
        "ATTACH ':memory:' AS other",
        "SET threads=1",
        "COPY slice TO 'out.csv'",
        "SELECT * FROM read_text('pyproject.toml')",
        "FROM 'pyproject.toml'",
        "FROM query",  # a Python variable inside Trace.sql
        "FROM live",  # a Python variable here
    ],
)
def test_queries_only_read_the_trace(live, query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = live.sql("SELECT COUNT(*) AS n FROM slice")["n"][0]
    with pytest.raises(ValueError):
        live.sql(query)
    assert live.sql("SELECT COUNT(*) AS n FROM slice")["n"][0] == before > 0
    assert list(tmp_path.iterdir()) == []


# --- tables ---


def test_the_exact_text_of_spans_is_the_same_on_a_gpu(on_a_gpu):
    host_only = [e for e in on_a_gpu.data["traceEvents"] if e.get("pid") != 0]
    without = Trace({"traceEvents": host_only}).spans()
    assert repr(Table.of(without)) == repr(Table.of(on_a_gpu.spans()))
    assert repr(Table.of(without)).splitlines() == [
        "Spans",
        "name                                               n",
        "-------------------------------------------------  -",
        "roseinfer.decode_step_sessions.total               2",
        "roseinfer.decode_step_sessions.build_batched_past  2",
        "roseinfer.model.forward                            2",
        "roseinfer.model.attention                          2",
        "(unlabelled)",
    ]


def test_a_step_without_children_is_all_unlabelled():
    df = Trace({"traceEvents": [event(STEP, 0, 10)]}).spans().df
    assert df["name"].tolist() == [STEP, "(unlabelled)"]
    assert df["share"].tolist() == [1.0, 1.0]


def test_spans_of_any_trace_by_prefix():
    trace = Trace({"traceEvents": [event("train_step", 0, 10), event("train_step.backward", 2, 5)]})
    assert trace.spans(prefix="train").df["name"].tolist() == ["train_step", "train_step.backward", "(unlabelled)"]
    with pytest.raises(ValueError, match="no span starts with prefix='roseinfer.'.*train_step"):
        trace.spans()


def test_ops_are_those_of_the_posts_query_in_a_deterministic_order(live):
    table = live.ops(BUILD)
    post = live.sql(POST_QUERIES["ops in build"])
    assert list(table.df.columns) == list(post.columns)
    by_name = {name: values for name, *values in post.values.tolist()}
    assert {name: values for name, *values in table.df.values.tolist()} == by_name
    counts = table.df[["n", "name"]].values.tolist()
    assert counts == sorted(counts, key=lambda row: (-row[0], row[1]))
    assert live.sql(table.query).equals(table.df)
    assert "total_ms" not in repr(Table.of(table))
    assert "total_ms" in Table.of(table).to_html()


def test_ops_and_count_look_into_the_first_span_only(live):
    assert live.count("aten::copy_") == 3 * (4 + 3)
    assert live.count("aten::copy_", span=APPEND) == 3
    assert live.count("aten::nosuch", span=APPEND) == 0
    assert live.op_counts(APPEND)["aten::copy_"] == 3
    assert live.op_counts()["aten::copy_"] == 21
    for look in (live.ops, live.op_counts, lambda name: live.count("aten::copy_", span=name)):
        with pytest.raises(ValueError, match=rf"no span \"it's\".*allowed: .*{re.escape(APPEND)}"):
            look("it's")


def test_the_caption_says_live_or_recorded(live, tmp_path):
    assert live.caption.startswith("measured live on")
    live.save(tmp_path / "t.json")
    recorded = Trace.load(tmp_path / "t.json")
    assert recorded.caption.startswith("recorded 2")
    assert recorded.metadata == live.metadata
    assert f"torch {torch.__version__}" in recorded.caption


# --- files ---


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_saving_and_loading_keeps_every_table(live, tmp_path, name):
    live.save(tmp_path / name)
    again = Trace.load(tmp_path / name)
    everything = "SELECT * FROM slice ORDER BY id"
    assert again.sql(everything).equals(live.sql(everything))
    assert again.spans().df.equals(live.spans().df)
    assert repr(Table.of(again.ops(BUILD))) == repr(Table.of(live.ops(BUILD)))
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_saving_under_another_suffix_is_refused(live, tmp_path):
    with pytest.raises(ValueError, match=r"saved as \*.json or \*.json.gz"):
        live.save(tmp_path / "t.txt")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"traceEvents": [', "not JSON"),
        (b"\xff\xfe\x00bad", "not JSON"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "damaged gzip"),
        (b'"text"', "not a Chrome trace"),
        (b'{"cells": []}', "not a Chrome trace"),
        (b'{"traceEvents": {}}', "not a Chrome trace"),
        (b'{"traceEvents": []}', "no complete events"),
        (b'{"traceEvents": [1, {"ph": "M", "name": "x"}, {"ph": "X"}]}', "no complete events"),
    ],
)
def test_what_is_not_a_trace_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"some.json.*{message}"):
        Trace.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json.*no such trace file"):
        Trace.load(tmp_path / "nowhere.json")


def test_tensorboards_plugin_reads_what_it_is_given(live, tmp_path):
    from torch_tb_profiler.consts import WORKER_PATTERN
    from torch_tb_profiler.profiler.data import RunProfileData

    path = live.to_tensorboard(tmp_path / "logs")
    worker, timestamp = WORKER_PATTERN.match(path.name).groups()
    assert worker == "roseinfer" and timestamp
    assert len(RunProfileData.parse(worker, timestamp, str(path), str(tmp_path)).steps_names) == 3
    assert live.to_tensorboard(tmp_path / "logs") != path
    with pytest.raises(ValueError, match="worker must be a file name part"):
        live.to_tensorboard(tmp_path, worker="a/b")


def test_labels_in_place_of_numbers_keep_threads_apart():
    tids = [7, "12", "stream 7", "stream 8", None, 2**63, "stream 7"]
    events = [event("aten::add", ts, 1, cat="cpu_op", tid=tid) for ts, tid in enumerate(tids)]
    trace = Trace({"traceEvents": events + [{"ph": "X", "name": "bare", "ts": 10}]})
    assert [e.tid for e in trace.slices] == [7, 12, -1, -2, -3, -4, -1, -3]
    assert trace.rows("SELECT cat, dur, tid, pid FROM slice WHERE name = 'bare'")[1] == [("", 0, -3, -3)]


def test_times_are_exact_to_the_nanosecond():
    us = 4475508392911.681  # times 1000 it is 1 ns off
    assert round(us * 1000) != 4475508392911681
    assert Trace({"traceEvents": [event("x", us, 0.001)]}).slices[0][:2] == (4475508392911681, 1)


@pytest.mark.parametrize("ts, dur", [("12", 1), (None, 1), (1, float("nan")), (1, float("inf")), (1, None), (1, [])])
def test_a_time_that_is_no_number_is_named(ts, dur):
    with pytest.raises(ValueError, match="event 'odd': (ts|dur)=.* is not a number of microseconds"):
        _ = Trace({"traceEvents": [event("odd", ts, dur)]}).slices
