"""The shape of a lesson: a short core path, a stub early, the rest folded, and the same requests in the last cell."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.shape import FOLD, Shape, lessons
from tools.timetables import load

MOST_WORDS, MOST_CODE_CELLS, LATEST_STUB, MOST_SETUP_LINES, MOST_MINUTES = 1400, 28, 12, 8, 45


@pytest.fixture(params=lessons(), ids=lambda path: path.stem)
def lesson(request):
    return Shape(request.param)


def is_background(lesson):
    return lesson.name.startswith("a")


def test_the_core_path_is_short(lesson):
    assert lesson.words <= MOST_WORDS
    assert lesson.num_code_cells <= MOST_CODE_CELLS
    assert lesson.setup_lines <= MOST_SETUP_LINES
    assert lesson.minutes <= MOST_MINUTES


def test_a_learner_writes_code_early(lesson):
    assert lesson.first_stub is not None and lesson.first_stub <= LATEST_STUB


def test_exercises_are_numbered_as_they_come(lesson):
    stubs = [each.cell.metadata["exercise"] for each in lesson.cells if each.is_stub]
    assert stubs == [f"{lesson.name[:2]}.{number}" for number in range(1, len(stubs) + 1)]


def test_a_cell_has_no_marks_for_a_tool(lesson):
    """A learner reads each word of a cell: what a linter may ignore stands in pyproject.toml."""
    marks = ("noqa", "type: ignore", "pragma:", "fmt: ", "nosec", "pylint", "NBVAL")
    assert [mark for each in lesson.cells if each.is_code for mark in marks if mark in each.cell.source] == []


def test_what_is_deeper_is_folded_and_nothing_else(lesson):
    assert lesson.odd_folds == []


def test_a_lesson_shows_the_part_of_the_engine_that_it_builds(lesson):
    number = lesson.name[:2]
    calls = [each.cell.source for each in lesson.core if each.is_code]
    if is_background(lesson):
        wanted = "teach.setup()"
    else:
        wanted = "teach.engine_page()" if number == "00" else f'teach.setup(lesson="{number}")'
    assert any(wanted in source for source in calls)


def test_the_core_path_runs_without_what_is_folded(lesson):
    assert lesson.needs_folded == {}


def test_a_lesson_ends_with_the_same_requests(lesson):
    code = [each.cell.source for each in lesson.core if each.is_code]
    if is_background(lesson):  # it builds no stage
        assert code[-1] == "teach.progress()"
    elif lesson.name.startswith("00"):  # the first one shows where the course goes
        assert "teach.recorded_requests()" in code[:7]
    else:
        assert "teach.serve_requests(" in code[-1]


def test_the_core_path_takes_45_minutes_in_a_room(lesson):
    [part] = [part for day, table in load().items() if day.startswith("day-") for part in table.parts
              if part.lesson == lesson.name[:2]]  # fmt: skip
    core = sum(minutes for section, minutes in part.sections.items() if not section.startswith("Deeper: "))
    assert part.opening + core <= MOST_MINUTES


# The reader itself


def deeper(text):
    return new_markdown_cell(text, metadata={FOLD: True})


@pytest.fixture
def shape(tmp_path):
    def read(*cells):
        path = tmp_path / "99_lesson.ipynb"
        nbformat.write(new_notebook(cells=list(cells)), path)
        return Shape(path)

    return read


STUB = new_code_cell("def answer(): ...", metadata={"exercise": "99.1"})


def test_what_stands_open_is_counted(shape):
    one = shape(
        new_markdown_cell("# One two"),
        new_code_cell("import a\n\nimport b"),
        new_markdown_cell("## Three four five"),
        new_code_cell("b"),
        deeper("### Deeper: more"),
        new_markdown_cell("many words that are not counted"),
        new_code_cell("c = 1"),
        new_markdown_cell("#### Still deeper"),
        new_code_cell("d = 1"),
        new_markdown_cell("### Six"),
        STUB,
        new_code_cell("teach.check('99.1', answer)"),
        new_code_cell("teach.serve_requests(Stage)"),
    )
    # A sign of a heading counts as a word, as it does for every other count of words.
    assert (one.words, one.all_words) == (3 + 4 + 3 + 2, 3 + 4 + 3 + 6 + 3 + 2)
    assert (one.num_code_cells, one.first_stub, one.setup_lines) == (3, 3, 2)
    assert one.odd_folds == [] and one.needs_folded == {}
    assert one.minutes == pytest.approx(12 / 150 + 3)


def test_a_name_that_only_a_fold_binds_is_found(shape):
    cells = [
        new_code_cell("a = 1"),
        deeper("## Deeper: more"),
        new_code_cell("a, b = 2, 3\ndef c(): ..."),
        new_markdown_cell("## On"),
        new_code_cell("print(a)\nc(b)"),
    ]
    assert shape(*cells).needs_folded == {"print(a)": ["b", "c"]}


@pytest.mark.parametrize(
    "cell",
    [
        new_markdown_cell("## Deeper: open"),
        deeper("## Folded under another name"),
        deeper("Text above.\n\n## Deeper: a heading in the middle of a cell"),
        new_markdown_cell("## First\n\n## Second"),
    ],
)
def test_a_fold_that_jupyterlab_would_not_make_is_odd(shape, cell):
    assert shape(cell).odd_folds


def test_a_lesson_without_a_stub(shape):
    assert shape(new_code_cell("1")).first_stub is None
