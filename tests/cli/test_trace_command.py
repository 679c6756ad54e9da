"""roseinfer trace: what it prints, what it refuses, and how."""

import io
import json
import signal
import subprocess
import sys

import pytest
from tiers import in_every_run
from trace_cases import BUILD, FORWARD, STEP, event, toy_step, two_gpu_steps

from course.posts.data import POSTS
from roseinfer.cli.main import main
from roseinfer.display.text_table import TextTable
from roseinfer.profiling import Trace, capture

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "live.json.gz"
    capture(toy_step(), steps=3, warmup=1).save(path)
    return path


@pytest.fixture
def gpu(tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(two_gpu_steps()))
    return path


@pytest.fixture
def write(tmp_path):
    """write(data or bytes) -> the path of a file that holds it."""

    def write(content, name="t.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


@pytest.fixture
def run(capsys):
    """run(*arguments) -> exit status, lines of stdout, stderr."""

    def run(*arguments):
        status = main(["trace", *map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


# --- overview ---


def test_a_file_alone_gives_an_overview(run, gpu):
    status, out, err = run(gpu)
    assert (status, err) == (0, "")
    size = f"{gpu.stat().st_size:,}"
    assert out == [
        f"{gpu}: {size} bytes, a trace without metadata",
        "19 events with a duration in 0.001300 s: the table slice",
        "other events, by phase (M: name of a thread, s and f: ends of an arrow, i: instant): 1 M",
        "",
        "cat                  events  names",
        "-------------------  ------  -----",
        "user_annotation           8      4",
        "cpu_op                    4      2",
        "gpu_memcpy                2      1",
        "gpu_user_annotation       2      1",
        "kernel                    2      1",
        "Trace                     1      1",
        "",
        "Spans",
        "cat                  span                                               n  total_ms  avg_ms",
        "-------------------  -------------------------------------------------  -  --------  ------",
        "user_annotation      roseinfer.decode_step_sessions.total               2     0.200   0.100",
        "user_annotation      roseinfer.decode_step_sessions.build_batched_past  2     0.060   0.030",
        "user_annotation      roseinfer.model.forward                            2     0.100   0.050",
        "user_annotation      roseinfer.model.attention                          2     0.040   0.020",
        "gpu_user_annotation  roseinfer.model.forward                            2     0.080   0.040",
    ]


def test_overview_of_our_own_file_says_where_it_comes_from(run, live):
    status, out, _ = run(live)
    assert status == 0
    assert ", 3 steps" in out[0] and "recorded 2" in out[0]
    assert any(line.split()[:3] == ["user_annotation", "ProfilerStep#*", "3"] for line in out)


def test_overview_of_a_bare_list_without_cats_or_numbered_threads(run, write):
    path = write([{"ph": "X", "name": "f", "ts": 1, "dur": 2, "pid": "host", "tid": "main"}, {"ph": "i"}, 3])
    status, out, err = run(path)
    assert (status, err) == (0, "")
    assert out[2].endswith(": 1 i, 1 no event")
    assert out[-2:] == ["---  ----  -  --------  ------", "(no rows)"]


# --- queries ---


QUERIES = {path.stem: (path,) for path in sorted((POSTS / "000").glob("*.sql"))}


@pytest.mark.parametrize("path", in_every_run(QUERIES, ["spans", "self_time"]))
def test_our_queries_run_from_their_files(run, live, path):
    status, out, err = run(live, "--sql-file", path)
    assert (status, err) == (0, "")
    table = Trace.load(live).rows(path.read_text(encoding="utf-8"))
    assert out == TextTable.of(*table, missing="NULL").text().splitlines()


@pytest.mark.parametrize("flag", ["--sql", "--sql-file"])
def test_a_query_from_stdin(run, gpu, monkeypatch, flag):
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT COUNT(*) AS n\nFROM slice;\n"))
    assert run(gpu, flag, "-") == (0, [" n", "--", "19"], "")


def test_parts_are_printed_in_a_fixed_order(run, gpu):
    status, out, _ = run(gpu, "--sql", "SELECT 1 AS one", "--ops", BUILD, "--spans")
    assert status == 0
    assert out == [
        "Spans: a trace without metadata",
        "side    name                                                  n  total_ms  ms_per_step  share",
        "------  -------------------------------------------------  ----  --------  -----------  -----",
        "host    roseinfer.decode_step_sessions.total                  2     0.200        0.100  1.000",
        "host    roseinfer.decode_step_sessions.build_batched_past     2     0.060        0.030  0.300",
        "host    roseinfer.model.forward                               2     0.100        0.050  0.500",
        "host    roseinfer.model.attention                             2     0.040        0.020  0.200",
        "device  roseinfer.model.forward                               2     0.080        0.040  0.400",
        "host    (unlabelled)                                       NULL     0.040        0.020  0.200",
        "",
        f"aten ops in the first {BUILD}: a trace without metadata; times are inclusive",
        "name         n  total_ms  avg_us",
        "-----------  -  --------  ------",
        "aten::copy_  1     0.004   4.000",
        "",
        "one",
        "---",
        "  1",
    ]


def test_spans_of_anyones_trace(run, write):
    path = write([event("ProfilerStep#4", 0, 100), event("forward", 10, 50), event("ProfilerStep#5", 100, 60)])
    status, out, err = run(path, "--spans")
    assert (status, err) == (0, "")
    assert [line.split()[:3] for line in out[3:]] == [
        ["host", "ProfilerStep#*", "2"],
        ["host", "forward", "1"],
        ["host", "(unlabelled)", "NULL"],
    ]
    assert out[-1].split()[3:] == ["0.110", "0.055", "0.688"]
    assert run(path, "--ops", "ProfilerStep#*")[1][0].startswith("aten ops in the first ProfilerStep#4: ")


def test_labels_side_by_side_are_no_steps(run, write):
    """A loop of four: two labels a turn, and 10 us of 100 that neither covers."""
    turns = [[event("forward", at, 60), event("backward", at + 60, 30)] for at in range(0, 400, 100)]
    status, out, err = run(write([each for turn in turns for each in turn]), "--spans")
    assert (status, err) == (0, "")
    assert [line.split()[1:] for line in out[3:]] == [
        ["forward", "4", "0.240", "0.060", "0.615"],
        ["backward", "4", "0.120", "0.030", "0.308"],
        ["(unlabelled)", "NULL", "0.030", "0.007", "0.077"],
    ]


@pytest.mark.parametrize("around", [[], [event("train", 0, 500)], [event("load", 210, 40)]])
def test_the_profilers_own_marks_are_the_steps_whatever_is_around_them(run, write, around):
    steps = [event("ProfilerStep#2", 0, 100), event("ProfilerStep#3", 100, 100), event("forward", 110, 50)]
    status, out, _ = run(write([*around, *steps]), "--spans")
    rows = {row[1]: row[2:] for row in map(str.split, out[3:])}
    assert status == 0 and rows["ProfilerStep#*"] == ["2", "0.200", "0.100", "1.000"]
    assert rows["(unlabelled)"] == ["NULL", "0.150", "0.075", "0.750"]


def test_an_unknown_span_is_one_short_line_in_a_long_trace(run, write):
    path = write(
        [event(f"ProfilerStep#{i}", 10 * i, 9) for i in range(6000)]
        + [event(f"{'x' * 300}{i}", 10 * i, 5) for i in range(500)]
    )
    status, out, err = run(path, "--ops", "forwrad")
    assert (status, out) == (2, []) and err.count("\n") == 1 and len(err) < 5000
    assert err.endswith("and 461 more\n") and "ProfilerStep#*, xxx" in err
    status, _, err = run(path, "--sql", "SELECT 1 AS one FROM slice WHERE name = 'forwrad'")
    assert status == 0 and len(err) < 5000


RUNAWAY = "SELECT SUM(a.ts * b.ts + c.ts) AS s FROM slice a, slice b, slice c, slice d WHERE a.ts * b.ts + c.ts > d.ts"


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_ends_a_runaway_query_at_once(write):
    path = write([event(f"f{i}", 10 * i, 9) for i in range(3000)])
    code = (
        "import duckdb, sys\nfrom roseinfer.cli.main import main\nfrom roseinfer.profiling import Trace\n"
        "ask = Trace.rows\ndef rows(self, query):\n    print('asked', flush=True)\n    return ask(self, query)\n"
        "Trace.rows = rows\nsys.exit(main())"
    )
    command = [sys.executable, "-c", code, "trace", str(path), "--sql", RUNAWAY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "asked\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)  # what DuckDB itself takes is minutes
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_a_bad_query_is_shown_with_a_caret_and_nothing_else_is_printed(run, gpu):
    status, out, err = run(gpu, "--spans", "--sql", "SELECT name,\n  nosuch\nFROM slice;")
    assert (status, out) == (2, [])
    assert err.startswith('error: Binder Error: Referenced column "nosuch" not found')
    assert err.endswith("LINE 2:   nosuch\n          ^^^^^^\n")
    assert "Traceback" not in err


def test_no_rows_say_which_names_the_trace_does_not_have(run, gpu):
    query = "SELECT name FROM slice WHERE name = 'roseinfer.kv.append' AND cat = 'user_annotation' -- it's not there"
    assert run(gpu, "--sql", query) == (
        0,
        ["name", "----", "(no rows)"],
        "no rows; neither a name nor a cat in this trace: 'roseinfer.kv.append'\n"
        "cats: user_annotation, cpu_op, gpu_memcpy, gpu_user_annotation, kernel, Trace\n"
        f"spans: {STEP}, {BUILD}, {FORWARD}, roseinfer.model.attention\n",
    )
    assert run(gpu, "--sql", "SELECT 1 AS one FROM slice WHERE name LIKE 'no%' AND cat <> 'kernel'")[2] == "no rows\n"


# --- files ---


@pytest.mark.parametrize(
    "content, message",
    [
        (b"[" * 100_000, "not JSON ("),
        (b'[{"ph": "X", "name": "f", "ts": "soon"}]', "event 'f': ts='soon' is not a number of microseconds"),
    ],
    ids=["deep", "no time"],
)
def test_a_bad_file_is_one_line(run, write, content, message):
    status, out, err = run(write(content), "--sql", "SELECT 1")
    assert (status, out) == (1, [])
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


# --- pictures ---


@pytest.mark.parametrize("name, start", [("t.png", b"\x89PNG"), ("t.SVG", b"<svg")])
def test_a_timeline_is_written(run, gpu, tmp_path, name, start):
    path = tmp_path / name
    assert run(gpu, "--timeline", path) == (0, [], f"written: {path}\n")
    assert path.read_bytes().startswith(start)


def test_a_timeline_of_anyones_trace(run, write, tmp_path):
    path = write([event("ProfilerStep#4", 0, 100), event("forward", 10, 50)])
    assert run(path, "--timeline", tmp_path / "t.png")[0] == 0


def test_without_spans_it_says_what_is_missing(run, write, tmp_path):
    path = write([event("aten::add", 0, 1, cat="cpu_op")])
    for flags in (["--timeline", tmp_path / "t.png"], ["--spans"], ["--ops", "forward"]):
        assert run(path, *flags) == (
            2,
            [],
            "error: this trace has no span (cat 'user_annotation'): label a step with torch.profiler.record_function\n",
        )
    assert not (tmp_path / "t.png").exists()


@pytest.mark.parametrize(
    "picture, message",
    [
        ("t.txt", "unknown suffix '.txt', allowed: .png, .svg, .pdf"),
        ("t", "unknown suffix '', allowed: .png, .svg, .pdf"),
        ("no/t.png", "must be a file in a folder that exists"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_file_is_read(run, tmp_path, picture, message):
    status, out, err = run(tmp_path / "no.json", "--timeline", tmp_path / picture)
    assert (status, out) == (2, [])
    assert message in err and "no.json" not in err


# --- arguments ---


def test_a_query_file_that_is_not_text(run, gpu, write):
    status, _, err = run(gpu, "--sql-file", write(b"SELECT '\xff'", "f.sql"))
    assert status == 2
    assert "f.sql: not UTF-8 text" in err


def test_in_a_pipe_it_cuts_nothing(run, write):
    name = "kernel<" + "λ" * 500 + ">"
    path = write([event(name, ts, 1) for ts in range(3000)])
    out = run(path, "--sql", "SELECT name, ts FROM slice")[1]
    assert out[2:] == [f"{name}  {ts * 1000:7d}" for ts in range(3000)]
