"""`pytest --nbval -m "not nightly"`: no folded cells, two rounds at most, no unchanged notebook twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from roseinfer.paths import ROOT
from tools.notebooks import digest

FILES = (
    "conftest.py",
    "pyproject.toml",
    "tests/nbval.cfg",
    "tests/nbval_notebooks.py",
    "tools/__init__.py",
    "tools/notebooks.py",
)
# Runs each of the named notebooks as `make test` runs notebooks/lesson.ipynb. One process: each would import PyTorch.
RUN_IN_TURN = """
import shutil, sys, pytest
for name in sys.argv[1:]:
    shutil.copy(name, "notebooks/lesson.ipynb")
    print("status", int(pytest.main(["-q", "--nbval", "-m", "not nightly", "notebooks"])))
    print("end of a run", flush=True)
"""


def recorded(source, text):
    shown = new_output("execute_result", data={"text/plain": text}, execution_count=1)
    return new_code_cell(source, execution_count=1, outputs=[shown])


CELLS = [
    recorded("x = 1; x", "1"),
    new_markdown_cell("## Deeper", metadata={"jp-MarkdownHeadingCollapsed": True}),
    recorded("x = 2; x", "wrong"),
    new_markdown_cell("## Where it loses"),
    recorded("x", "1"),
    recorded("import os; os.environ['ROSEINFER_REPEATS']", "'2'"),
]


def run_in_turn(folder, *names) -> list[str]:
    """What each run says, in a folder laid out as the repository."""
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "notebooks").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-c", RUN_IN_TURN, *names]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    said = done.stdout.split("end of a run\n")[:-1]
    assert len(said) == len(names), done.stdout + done.stderr
    return said


@pytest.mark.slow
def test_a_notebook_is_run_without_its_folded_cells_until_it_is_green(tmp_path):
    for name, last in (("wrong", "3"), ("right", "2")):
        nbformat.write(new_notebook(cells=[*CELLS, recorded("x + 1", last)]), tmp_path / f"{name}.ipynb")
    first, second, third = run_in_turn(tmp_path, "wrong.ipynb", "right.ipynb", "right.ipynb")
    assert "status 1" in first and "1 failed, 3 passed, 1 deselected" in first and "Cell outputs differ" in first
    assert "status 0" in second and "4 passed, 1 deselected" in second
    assert "status 0" in third and "4 skipped, 1 deselected" in third
    assert "lesson.ipynb is unchanged since its last green run here" in third


def test_a_digest_is_of_what_the_files_hold_now(tmp_path):
    file = tmp_path / "lesson.ipynb"
    absent = digest([file])
    file.write_text("1")
    before = digest([file])
    file.write_text("2")
    assert len({absent, before, digest([file])}) == 3
    file.write_text("1")
    assert digest([file]) == before
