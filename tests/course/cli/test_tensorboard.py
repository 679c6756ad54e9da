"""roseinfer tensorboard: the runs it writes, and what TensorBoard's profiler plugin makes of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from course.cli.tensorboard import STEPS, free_port
from roseinfer.cli.main import main
from roseinfer.profiling import Trace

pytestmark = pytest.mark.slow


MODEL = "random:tiny-llama"
RUNS = ["s01_naive_cat", "s04_vectorized_gather"]
DEADLINE_S = 120  # of a busy machine; a quiet one needs some seconds
STEP_SPAN = "roseinfer.decode_step_sessions.total"


def run_of(logdir: Path, name: str) -> Trace:
    (file,) = (logdir / name).iterdir()
    return Trace.load(file)


class Server:
    """The command as a process of its own, and the plugin's answers."""

    def __init__(self, logdir: Path) -> None:
        command = [sys.executable, "-m", "roseinfer", "tensorboard", "--model", MODEL, "--device", "cpu", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--logdir", str(logdir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.said = []
        for line in self.process.stdout:  # ends when the process does
            self.said.append(line.strip())
            if line.startswith("TensorBoard: "):
                self.address = line.split()[1].partition("/#")[0]
                break

    def get(self, route: str, **query: str):
        address = f"{self.address}/data/plugin/pytorch_profiler/{route}?{urlencode(query)}"
        with urlopen(address, timeout=DEADLINE_S) as answer:
            return json.load(answer)

    def wait_for(self, runs: list[str]) -> None:
        """Wait until the plugin has loaded them: it lists them one by one."""
        answer, until = None, time.monotonic() + DEADLINE_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                answer = self.get("runs")
            except OSError:  # not up yet
                answer = None
            if answer and sorted(answer["runs"]) == runs:
                return
            time.sleep(0.2)
        raise AssertionError(f"{runs} wanted, got {answer}; exit status {self.process.poll()}; said: {self.said}")

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


def assert_same_counts(shown: dict[str, int], trace: Trace) -> None:
    """The plugin takes an op that starts nothing but itself, as aten::add_ of a Python number does, for one call."""
    counts = trace.op_counts()
    outermost = {op: trace.op_counts(outside=(op,))[op] for op in counts}
    nested = {op for op in counts if outermost[op] != counts[op]}
    assert {op: n for op, n in shown.items() if op not in nested} == {
        op: n for op, n in counts.items() if op not in nested
    }
    assert all(outermost[op] <= shown[op] <= counts[op] for op in nested)
    assert nested.isdisjoint({"aten::copy_", "aten::cat", "aten::select", "aten::index", "aten::mm"})


def test_the_plugin_shows_each_stage_with_our_op_counts(tmp_path):
    server = Server(tmp_path)
    try:
        server.wait_for(RUNS)
        for run in RUNS:
            trace = run_of(tmp_path, run)
            where = {"run": run, "worker": run, "span": "1"}
            assert {"Overview", "Operator", "Trace"} <= set(server.get("views", run=run))
            assert server.get("workers", run=run, view="Overview") == [run]
            overview = server.get("overview", **where)
            assert len(overview["steps"]["rows"]) == trace.count(STEP_SPAN) == STEPS
            table = server.get("operation/table", **where, group_by="Operation")["data"]
            assert_same_counts({row["name"]: row["calls"] for row in table}, trace)
        os.killpg(server.process.pid, signal.SIGINT)  # Ctrl-C
        assert server.process.wait(DEADLINE_S) == 0
    finally:
        server.kill()


def test_only_the_runs_are_written_and_a_stages_run_is_replaced(tmp_path, capsys):
    arguments = ["--model", MODEL, "--device", "cpu", "--logdir", str(tmp_path), "--no-serve"]
    keep = tmp_path / "s03_select_append" / "mine.json"
    assert main(["tensorboard", *arguments, "--stages", "s03"]) == 0
    keep.write_text("{}")
    assert main(["tensorboard", *arguments, "--stages", "s03,s05"]) == 0
    first, second, third = (Path(line.removeprefix("written: ")) for line in capsys.readouterr().out.splitlines())
    assert not first.exists() and {second, keep} == set(keep.parent.iterdir())
    assert second.parent == keep.parent and third.parent == tmp_path / "s05_block_table"
    assert Trace.load(third).count("roseinfer.decode_step_sessions.build_block_tables") == STEPS


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--model", "random:gtp2"], "unknown shape 'random:gtp2', allowed: random:"),
        (["--stages", "s1"], "--stages: unknown stage 's1'"),
        (["--port", "70000"], "--port 70000: must be an integer from 0 to 65535"),
    ],
    ids=["model", "stages", "port"],
)
def test_bad_arguments_are_one_line(tmp_path, capsys, arguments, line):
    assert main(["tensorboard", "--logdir", str(tmp_path / "tb"), "--port", "0", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and line in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_refused_before_anything_is_profiled(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["tensorboard", "--logdir", str(tmp_path / "tb"), "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --port {port}: ")
    assert not list(tmp_path.iterdir())
    assert free_port(port) == port
