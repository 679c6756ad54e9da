"""Exercises: every notebook's stubs, checks and solutions fit together. That solutions PASS, `pytest --nbval` shows."""

from __future__ import annotations

import builtins
import importlib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course.teach.exercises.solutions import parse_solutions
from roseinfer.paths import ROOT
from tools.solutions import fill, find_problems, names, reached, stubs

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def load(path: Path) -> tuple[nbformat.NotebookNode, dict[str, str]]:
    solutions = path.parent / "solutions" / f"{path.stem}.py"
    text = solutions.read_text(encoding="utf-8") if solutions.exists() else ""
    return nbformat.read(path, as_version=4), parse_solutions(text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_exercises_and_solutions_fit_together(path):
    assert find_problems(*load(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_solution_stands_where_its_stub_stood(path):
    """Run in order, no cell reads a name before it is bound."""
    bound = {*dir(builtins), "display"}
    for cell in fill(*load(path)).cells:
        if cell.cell_type == "code":
            read, written = names(cell.source)
            assert read - bound <= written, cell.source
            bound |= written


# The same on a notebook made here, so that an empty folder or a blind checker is noticed.

SET_UP = """\
from course.teach import check
from course.teach.exercises.exercise import exercise
from course.teach.exercises.wrong import Wrong
from course.teach.exercises.text import Text

HINTS = "Read.", "Count.", "Add."

@exercise(Text("99.1", "Twice", 1, 1, 1, "def double(x: int) -> int: ...", "Double `x`.", HINTS))
def twice(answer):
    if answer(21) != 42:
        raise Wrong("not twice")

@exercise(Text("99.2", "How many", 1, 1, 1, "copies = None", "Count.", HINTS))
def how_many(answer):
    if answer != 24:
        raise Wrong(f"{answer} is too low")
"""
SOLUTIONS = '''\
"""Answers."""
import math

# --- 99.1
def double(x: int) -> int:
    return x + x

# --- 99.2
_layers = 12
copies = _layers * 2
'''


def stub(id, source, tags=("exercise",)):
    return new_code_cell(source, execution_count=1, metadata={"tags": list(tags), "exercise": id})


def check_cell(id, name, text):
    output = new_output("execute_result", data={"text/plain": text}, execution_count=1)
    return new_code_cell(f'check("{id}", {name})', execution_count=1, outputs=[output])


@pytest.fixture
def notebook(monkeypatch):
    exercise = importlib.import_module("course.teach.exercises.exercise")  # teach.exercise is the card

    monkeypatch.setattr(exercise, "_registered", {})
    exec(SET_UP, {})
    return new_notebook(
        cells=[
            new_code_cell(SET_UP, execution_count=1),
            stub("99.1", "def double(x: int) -> int:\n    ..."),
            check_cell("99.1", "double", "99.1 not attempted"),
            stub("99.2", "copies = None  # your number"),
            check_cell("99.2", "copies", "99.2 not attempted"),
        ]
    )


def test_a_fitting_notebook_has_no_problems_and_is_filled_as_a_copy(notebook):
    solutions = parse_solutions(SOLUTIONS)
    assert find_problems(notebook, solutions) == []
    assert [cell.source for cell in stubs(fill(notebook, solutions)).values()] == list(solutions.values())
    assert notebook.cells[3].source == "copies = None  # your number"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda nb, s: s.pop("99.2"), "99.2: no solution"),
        (lambda nb, s: s.update({"99.3": "x = 1"}), "solution 99.3 belongs to no cell tagged exercise"),
        (lambda nb, s: s.update({"99.2": "copy = 24"}), "99.2: the solution does not define copies"),
        (lambda nb, s: nb.cells[3].update(source=""), "99.2: the exercise keeps another stub than the cell has"),
        (lambda nb, s: nb.cells[1].update(source="def double(x: int): ..."), "99.1: the exercise keeps another"),
        (lambda nb, s: nb.cells.pop(2), "99.1: no cell calls check for it"),
        (lambda nb, s: nb.cells[2].update(outputs=[]), "99.1: the unsolved notebook should record"),
        (lambda nb, s: nb.cells.__setitem__(2, check_cell("99.1", "double", "99.1 PASS")), "99.1: the unsolved"),
        (lambda nb, s: nb.cells[1].metadata.pop("exercise"), "solution 99.1 belongs to no cell tagged exercise"),
        (lambda nb, s: nb.cells[1].metadata.pop("tags"), "a cell has the metadata exercise=99.1 but not the tag"),
        (lambda nb, s: nb.cells[1].metadata.update(exercise="99.2"), "2 cells are tagged exercise, with 1 different"),
        (lambda nb, s: nb.cells[1].metadata.update(exercise="98.1"), "98.1: exercise_id='98.1': lesson 98 has no"),
    ],
)
def test_what_does_not_fit_is_named(notebook, spoil, problem):
    solutions = parse_solutions(SOLUTIONS)
    spoil(notebook, solutions)
    assert any(found.startswith(problem) for found in find_problems(notebook, solutions)), find_problems(
        notebook, solutions
    )


def test_sections_are_parsed():
    assert parse_solutions(SOLUTIONS) == {
        "99.1": "def double(x: int) -> int:\n    return x + x\n",
        "99.2": "_layers = 12\ncopies = _layers * 2\n",
    }


@pytest.mark.parametrize(
    ("source", "read", "written"),
    [
        ("a = b", {"b"}, {"a"}),
        ("a = 1\nb = a", set(), {"a", "b"}),  # a is the cell's own
        ("a += 1", {"a"}, {"a"}),
        ("a[b] = c\nd.e = f", {"a", "b", "c", "d", "f"}, {"a", "d"}),
        ("import os.path\nfrom x import y as z", set(), {"os", "z"}),
        ("[row for row in rows if row in kept]", {"rows", "kept"}, set()),
        ("for a, b in c:\n    d = a", {"a", "c"}, {"a", "b", "d"}),
        ("def f(x, y=a):\n    z = x\n    return g(z)", {"a", "g"}, {"f"}),
        ("class A(B):\n    c = d\n    def f(self):\n        return lambda: e(self)", {"B", "d", "e"}, {"A"}),
        ("if a:\n    b = 1\nprint(b)", {"a", "b", "print"}, {"b"}),
        ("for a in b:\n    c += a", {"a", "b", "c"}, {"a", "c"}),
        ("def f(out):\n    out.a = 1\nout", {"out"}, {"f"}),
        ("with open(p) as f:\n    print(f'{f.read()} {q}')", {"open", "p", "print", "f", "q"}, {"f"}),
    ],
)
def test_names_that_a_cell_reads_and_binds(source, read, written):
    assert names(source) == (read, written)


def test_solutions_reach_the_cells_that_read_them_and_what_these_bind(notebook):
    notebook.cells += map(
        new_code_cell,
        [
            "four = double(2)",  # reads an answer
            "speed = race()",  # reads none
            "table = {}\ntable['four'] = four",
            "print(speed)",
            "four = 4\nprint(four)",  # its own
            "print(table)",
        ],
    )
    solved = fill(notebook, parse_solutions(SOLUTIONS))
    assert reached(solved) == [1, 2, 3, 4, 5, 7, 10]


def test_a_name_that_was_bound_again_later_is_bound_as_it_was(notebook):
    """`stage` is 2 when all cells have run: the answer's reader needs 1."""
    notebook.cells += map(new_code_cell, ["stage = 1", "print(double(stage))", "stage = 2", "print(stage)"])
    assert reached(fill(notebook, parse_solutions(SOLUTIONS))) == [1, 2, 3, 4, 5, 6]
