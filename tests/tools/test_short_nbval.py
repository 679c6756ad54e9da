"""`pytest --nbval -m "not nightly"`: no folded cells, five rounds at most, no unchanged notebook twice."""

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

ROUNDS = "from roseinfer.bench.interleave import interleaved\nlen(interleaved({'a': list}, repeats=9)['a'])"
FILES = (
    "conftest.py",
    "pyproject.toml",
    "tests/nbval.cfg",
    "tests/nbval_notebooks.py",
    "tools/__init__.py",
    "tools/notebooks.py",
)


def recorded(source, text, tags=()):
    shown = new_output("execute_result", data={"text/plain": text}, execution_count=1)
    return new_code_cell(source, execution_count=1, outputs=[shown], metadata={"tags": list(tags)})


CELLS = [
    recorded("x = 1; x", "1"),
    new_markdown_cell("## Deeper", metadata={"jp-MarkdownHeadingCollapsed": True}),
    recorded("x = 2; x", "wrong"),
    new_markdown_cell("## Where it loses"),
    recorded("x", "1"),
    recorded(ROUNDS, "5"),
]


@pytest.fixture
def folder(tmp_path):
    """A folder laid out as the repository, with one notebook."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def run(folder, cells) -> tuple[int, str]:
    """The status of a run as `make test` makes it, and its last lines."""
    nbformat.write(new_notebook(cells=cells), folder / "notebooks" / "lesson.ipynb")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "-m", "not nightly", "notebooks"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_notebook_is_run_without_its_folded_cells_until_it_is_green(folder):
    status, said = run(folder, [*CELLS, recorded("x + 1", "3")])
    assert status == 1 and "1 failed, 3 passed, 1 deselected" in said and "Cell outputs differ" in said

    right = [*CELLS, recorded("x + 1", "2")]
    status, said = run(folder, right)
    assert status == 0 and "4 passed, 1 deselected" in said

    status, said = run(folder, right)
    assert status == 0 and "4 skipped, 1 deselected" in said
    assert "lesson.ipynb is unchanged since its last green run here" in said


def test_a_digest_is_of_what_the_files_hold_now(tmp_path):
    file = tmp_path / "lesson.ipynb"
    absent = digest([file])
    file.write_text("1")
    before = digest([file])
    file.write_text("2")
    assert len({absent, before, digest([file])}) == 3
    file.write_text("1")
    assert digest([file]) == before
