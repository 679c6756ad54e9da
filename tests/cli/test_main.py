"""The command `roseinfer`: its subcommands' help, and what errors and exit statuses mean for all of them."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import pytest

from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.token_check import TokensDiffer
from roseinfer.cli.command import Failed, require_folder, require_writable
from roseinfer.cli.commands import doctor
from roseinfer.cli.main import COMMANDS, course_commands, main, name_of
from roseinfer.doctor import Check, Report
from roseinfer.kernels import triton_mode
from roseinfer.parallel.process import ProcessEnded
from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow


ALL = (*COMMANDS, *course_commands())
NAMES = [name_of(module) for module in ALL]
ELSEWHERE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_without_a_command_it_lists_them(capsys):
    assert main([]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:4] == " " * 4 and line[4] > " "]
    assert listed == NAMES


def test_without_a_benchmark_it_lists_them(capsys):
    assert main(["bench"]) == 0
    assert "offline" in (shown := capsys.readouterr().out) and "memory" in shown and "host" in shown


def test_it_tells_its_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"roseinfer {version('roseinfer')}\n", "")


def test_help_has_examples_waits_for_nothing_heavy_and_has_the_courses_commands_in_any_folder(tmp_path):
    code = f"""
import sys
from roseinfer.cli.main import main
for name in {NAMES}:
    try:
        main([name, "--help"])
    except SystemExit as left:
        assert left.code == 0
print({{"torch", "pandas", "matplotlib", "tqdm"}} & sys.modules.keys())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=ELSEWHERE, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "set()"
    for module in ALL:
        assert f"usage: roseinfer {name_of(module)} [-h]" in done.stdout
        assert module.EXAMPLES and all(f"  {example}" in lines for example in module.EXAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_flag_is_one_line(name, capsys):
    required = {
        "trace": "FILE",
        "serve": "tiny",
        "generate": "tiny text",
        "chat": "tiny",
        "slides": "NOTEBOOK",
        "dry-run": "--model tiny --num-blocks 8",
    }
    needed = required.get(name, "").split()
    assert main([name, *needed, "--nosuch-flag"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: unknown argument '--nosuch-flag'") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("size=0"), 2, "error: size=0"),
        (FileNotFoundError("no such file"), 2, "error: no such file"),
        (Failed("no GPU"), 1, "error: no GPU"),
        (ContenderFailed("s01 failed"), 1, "error: s01 failed"),
        (ProcessEnded("rank 1 has ended"), 1, "error: rank 1 has ended"),
        (TokensDiffer("s01: tokens differ"), 1, "error: s01: tokens differ"),
        (OSError("disk full"), 1, "error: disk full"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("half is written"), 130, "interrupted: half is written"),
        (ModuleNotFoundError("No module", name="duckdb.sub"), 1, "error: duckdb is not installed: `make setup` "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_an_error_means(monkeypatch, capsys, error, status, line):
    def fails():
        raise error

    monkeypatch.setattr(doctor.doctor, "diagnose", fails)
    assert main(["doctor"]) == status
    said = capsys.readouterr().err
    assert said.startswith(line) and said.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ModuleNotFoundError("a bug", name="roseinfer.nosuch")])
def test_a_bug_is_shown_whole(monkeypatch, error):
    def fails():
        raise error

    monkeypatch.setattr(doctor.doctor, "diagnose", fails)
    with pytest.raises(type(error), match="a bug"):
        main(["doctor"])


def test_a_pipe_that_is_closed_is_no_error_to_tell():
    command = [sys.executable, "-m", "roseinfer", "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.nightly  # their help, above, is shown in any folder
def test_the_courses_commands_run_in_any_folder(tmp_path):
    lesson = str(ROOT / "notebooks" / "00_start_here.ipynb")
    command = [sys.executable, "-m", "roseinfer", "slides", lesson, "--out", "slides"]
    done = subprocess.run(command, cwd=tmp_path, env=ELSEWHERE, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "slides/00_start_here.html\n"), done.stderr


def test_what_is_to_be_written_is_tried_and_left_as_it_was(tmp_path):
    for name in ("new", "old"):
        path = tmp_path / name
        path.write_text("kept") if name == "old" else None
        require_writable("--output", path)
    require_folder("--out", tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "old"]
    assert (tmp_path / "old").read_text() == "kept" and not list((tmp_path / "a" / "b").iterdir())
    with pytest.raises(ValueError, match=r"a file in a folder that exists, and can be written \(Is a directory"):
        require_writable("--output", tmp_path)


@pytest.mark.parametrize("swallowed", [False, True], ids=["turned into another error", "swallowed"])
def test_ctrl_c_is_an_interruption_whatever_a_library_makes_of_it(monkeypatch, capsys, swallowed):
    def imports_something():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if not swallowed:
                raise ImportError("cannot load module more than once per process") from None
        return Report(())

    monkeypatch.setattr(doctor.doctor, "diagnose", imports_something)
    before = signal.getsignal(signal.SIGINT)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n" and signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("encoding", ["ascii", None])
def test_a_terminal_that_cannot_show_all_or_is_not_there(monkeypatch, encoding):
    report = Report((Check("hub", "offline → here", "note", "naïve", "connect"),))
    monkeypatch.setattr(doctor.doctor, "diagnose", lambda: report)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding) if encoding else None)
    assert main(["doctor"]) == 0
    assert encoding is None or b"offline ? here" in raw.getvalue()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("ladder --batch-size 99999999", "--batch-size 99999999: an engine for so many sequences of 40 tokens"),
        ("benchmark --num-requests 99999999", "--num-requests 99999999: an engine for so many sequences of 101"),
    ],
)
def test_what_cannot_fit_the_memory_is_refused_before_anything_is_loaded(monkeypatch, capsys, command, said):
    from roseinfer import benchmark_scheduler

    def never(*args, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("roseinfer.models.load_model", never)
    monkeypatch.setattr(benchmark_scheduler, "load_model", never)
    monkeypatch.setattr("roseinfer.planning.sizes.available_bytes", lambda device: 10**9)
    name, *flags = command.split()
    if name == "ladder":
        assert main(command.split()) == 2
    else:
        assert benchmark_scheduler.main(["--hf-model-id", "tiny", "--prompt", "Hello", *flags]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {said}")
    assert re.search(r"bytes, and cpu has 1,000,000,000 available, for at most [\d,]+\n$", err)


def test_aot_says_once_that_it_was_interrupted(monkeypatch, capsys):
    """Its work is done by a process of its own, which does not hear Ctrl-C."""
    started = {}

    def run(command, **options):
        started.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("roseinfer.cli.commands.aot.subprocess.run", run)
    language = triton_mode.language() or MagicMock()
    monkeypatch.setattr("roseinfer.kernels.triton_mode.language", lambda: language)
    assert main(["aot"]) == 130
    assert started["start_new_session"] and capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)"], ids=["usual", "in background"])
def test_sigterm_ends_what_a_command_has_started(before):
    code = f"""
import signal, time
from roseinfer.cli.command import exit_status
from roseinfer.bench.child_process import ChildProcess

class Sleeping(ChildProcess):
    def wait_until_ready(self):
        print(self.process.pid, flush=True)

def run():
    with Sleeping("sleep", ["sleep", "1000"]):
        time.sleep(1000)

{before}
exit_status(run, is_process=True)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        started = int(process.stdout.readline())
        os.kill(started, 0)  # it runs
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 130 and err == "interrupted\n"
    with pytest.raises(ProcessLookupError):
        os.kill(started, 0)
