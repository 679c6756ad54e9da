"""tools/shell/gpu_report.sh: what it runs on a GPU, tried with a Python that prints its arguments."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from course.posts.data import post_facts
from roseinfer import benchmark_scheduler
from roseinfer.cli.main import parser
from roseinfer.paths import ROOT
from tools import gpu_variants

SCRIPT = ROOT / "tools/shell/gpu_report.sh"
PRINTS_ITS_ARGUMENTS = """#!/bin/sh
case "$*" in
    *nbval,*) exit "$NO_NBVAL";;
    *xdist*) exit "$NO_XDIST";;
    -c*) echo a100;;
    *"bench host"*) echo "$*"; exit 3;;
    *) echo "$*";;
esac
"""
RUNS_ITS_COMMAND = """#!/bin/sh
shift 2
exec "$@"
"""


@pytest.fixture
def dry_run(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return dry_run_in(tmp_path)


def dry_run_in(
    tmp_path: Path, lacks: tuple[str, ...] = ("nbval",), path: str = "/usr/bin:/bin", **variables: str
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tools/shell").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "tools/shell")
    (tmp_path / "tests/engine").mkdir(parents=True)
    for name in ("test_engine_on_devices.py", "test_engine.py"):
        (tmp_path / "tests/engine" / name).touch()
    python = tmp_path / "python"
    python.write_text(PRINTS_ITS_ARGUMENTS)
    python.chmod(0o755)
    return subprocess.run(
        ["sh", "tools/shell/gpu_report.sh"],
        cwd=tmp_path,
        env={
            "PATH": path,
            "PY": str(python),
            "NO_XDIST": str(int("xdist" in lacks)),
            "NO_NBVAL": str(int("nbval" in lacks)),
            **variables,
        },
        capture_output=True,
        text=True,
    )


def test_every_command_is_one_that_there_is(tmp_path: Path):
    sanitizer = tmp_path / "bin/compute-sanitizer"
    sanitizer.parent.mkdir()
    sanitizer.write_text(RUNS_ITS_COMMAND)
    sanitizer.chmod(0o755)
    done = dry_run_in(tmp_path, lacks=(), path=f"{sanitizer.parent}:/usr/bin:/bin")
    tests, *commands, notebooks = done.stdout.splitlines()
    assert tests.startswith("-m pytest -q -m gpu --confcutdir=tests ")
    assert notebooks == ("-m pytest -q --nbval -m not nightly -n auto --maxprocesses 14 --dist loadscope notebooks")
    parsers = {
        "roseinfer": parser(),
        "roseinfer.benchmark_scheduler": benchmark_scheduler.parser(),
        "tools.gpu_variants": gpu_variants.parser(),
    }
    for command in commands:
        _, module, *arguments = command.split()
        assert parsers[module].parse_args(arguments).device == "cuda"
    assert {command.split()[1] for command in commands} == parsers.keys()
    assert "bench executors --model random:tiny-llama" in done.stdout


def test_each_result_has_a_file_of_its_own_and_no_earlier_one_is_lost(dry_run: subprocess.CompletedProcess[str]):
    words = dry_run.stdout.split()
    files = [words[i + 1] for i, word in enumerate(words) if word == "--output"]
    assert len(files) == len({*files})
    kept = {file.name for file in (ROOT / "data/runs").glob("*/*.json") if file.stem.endswith(("-before", "-b28c777"))}
    assert kept and not kept & {Path(file).name for file in files}


@pytest.mark.parametrize("post", ["000", "004"])
def test_a_posts_command_has_its_arguments(post: str, dry_run: subprocess.CompletedProcess[str]):
    own = shlex.split(post_facts(post)["command"].replace("--profile", ""))[3:]
    ours = [line.split() for line in dry_run.stdout.splitlines() if f"/post-{post}" in line]
    left_out = {"--checkpoint-path", "--tokenizer-name", "--hf-model-id", "--repeat-runs", "--paged-attn"}
    asked = {flag for flag in own if flag.startswith("--")} - left_out
    for words in ours:
        assert asked <= {*words}
        for flag in asked:
            value = own[own.index(flag) + 1 : own.index(flag) + 2]
            assert not value or value[0].startswith("--") or words[words.index(flag) + 1] == value[0]
    assert ours


def test_it_runs_the_files_that_hold_cases_of_a_gpu_with_what_the_machine_has(tmp_path: Path):
    cases: list[tuple[tuple[str, ...], str]] = [
        ((), "-n auto --maxprocesses 14 --dist worksteal "),
        (("xdist", "nbval"), ""),
    ]
    for i, (lacks, workers) in enumerate(cases):
        tests, *_ = dry_run_in(tmp_path / str(i), lacks).stdout.splitlines()
        assert tests == f"-m pytest -q -m gpu --confcutdir=tests {workers}tests/engine/test_engine_on_devices.py"


def test_results_lie_where_lessons_look_for_them(dry_run: subprocess.CompletedProcess[str]):
    files = [word for word in dry_run.stdout.split() if word.startswith("data/")]
    for pattern in (
        "runs/a100/ladder*.json",
        "runs/a100/kernels*.json",
        "runs/a100/online*.json",
        "runs/a100/step*.json",
        "traces/a100",
    ):
        assert any(fnmatch(file, f"data/{pattern}") for file in files)


def test_a_failure_is_named_at_the_end_and_the_rest_is_run(dry_run: subprocess.CompletedProcess[str]):
    assert dry_run.returncode == 1 and "tensorboard" in dry_run.stdout
    *_, title, failed = dry_run.stderr.splitlines()
    assert title == "gpu-report: not done:" and " bench host " in failed
    assert failed.startswith("    exit status not 0: ")


def test_what_has_no_time_left_is_named_and_not_begun(tmp_path: Path):
    done = dry_run_in(tmp_path, GPU_REPORT_SECONDS="0")
    assert done.returncode == 1 and done.stdout == ""
    _, *left_out = done.stderr.partition("not done:\n")[2].splitlines()
    assert left_out and all(line.startswith("    no time left: ") for line in left_out)


def test_a_tool_that_is_not_there_is_said(dry_run: subprocess.CompletedProcess[str]):
    assert "no compute-sanitizer on the PATH" in dry_run.stderr
    assert "no notebook is compared" in dry_run.stderr and "--nbval" not in dry_run.stdout


def test_results_go_to_another_folder_where_one_is_named(tmp_path: Path):
    done = dry_run_in(tmp_path, GPU_REPORT_DATA=str(tmp_path / "out"))
    assert f"--output {tmp_path}/out/runs/a100/kernels.json" in done.stdout and " data/" not in done.stdout


@pytest.mark.slow
def test_it_needs_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = subprocess.run(["sh", SCRIPT], env={"PY": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: make gpu-report needs an NVIDIA GPU, and torch ")
