"""The command `roseinfer`: its subcommands' help, and what errors and exit statuses mean for all of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from roseinfer.bench import ContenderFailed, TokensDiffer
from roseinfer.cli import doctor
from roseinfer.cli.command import Failed
from roseinfer.cli.main import COMMANDS, main, name_of
from roseinfer.paths import ROOT

NAMES = [name_of(module) for module in COMMANDS]


def test_without_a_command_it_lists_them(capsys):
    assert main([]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:4] == " " * 4 and line[4] > " "]
    assert listed == NAMES
    assert NAMES == [
        "doctor", "ladder", "reproduce", "trace", "dry-run", "aot", "gpu-report", "tensorboard", "slides", "links",
    ]  # fmt: skip


def test_help_has_examples_and_waits_for_nothing_heavy():
    code = f"""
import sys
from roseinfer.cli.main import main
for name in {NAMES}:
    try:
        main([name, "--help"])
    except SystemExit as left:
        assert left.code == 0
print({{"torch", "pandas", "matplotlib", "rich"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "set()"
    for module in COMMANDS:
        assert f"usage: roseinfer {name_of(module)} [-h]" in done.stdout
        assert module.EXAMPLES and all(f"  {example}" in lines for example in module.EXAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_flag_is_one_line(name, capsys):
    needed = {"trace": ["FILE"], "slides": ["NOTEBOOK"]}.get(name, [])
    assert main([name, *needed, "--nosuch-flag"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: unknown argument '--nosuch-flag'") and err.count("\n") == 1


def test_an_unknown_command_is_one_line(capsys):
    assert main(["lader"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "ladder" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("size=0"), 2, "error: size=0"),
        (FileNotFoundError("no such file"), 2, "error: no such file"),
        (Failed("no GPU"), 1, "error: no GPU"),
        (ContenderFailed("s01 failed"), 1, "error: s01 failed"),
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


def test_the_clones_tools_are_found_from_anywhere(tmp_path):
    """As the command is installed, only the packages roseinfer and stages are on the path."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from roseinfer.cli.main import main
sys.path.remove({str(ROOT)!r})
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "slides", str(ROOT / "notebooks" / "00_start_here.ipynb"), "--out", "slides"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout) == (0, "slides/00_start_here.html\n"), done.stderr
