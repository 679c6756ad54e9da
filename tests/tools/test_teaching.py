"""The teacher's kit: timetables add up and name what exists, questions and wrong answers are the course's own."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections import defaultdict
from types import SimpleNamespace

import nbformat
import pytest
import wrong_answers
from packaging.requirements import Requirement

from course.teach.exercises.exercise import find, find_all
from roseinfer.paths import ROOT
from tools import timetables
from tools.timetables import Part, Timetable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

wrong_answers.register_all()

TEACHING = ROOT / "teaching"
README = (TEACHING / "README.md").read_text(encoding="utf-8")
TIMETABLES = timetables.load()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DAYS = (*(f"day-{n}" for n in range(1, 18)), "day-0")  # before the first day: the background notebooks, a1 to a3
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COURSE = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["course"]]
DEPENDENCIES = {r.name: r for r in map(Requirement, COURSE)}
YOUR_TURN = "Your turn"  # a section of exercises alone, whose minutes are theirs


def lesson_parts(names):
    return [part for name in names for part in TIMETABLES[name].parts if part.lesson]


# The timetables


@pytest.mark.parametrize("name", TIMETABLES)
def test_the_minutes_of_a_timetable_add_up(name):
    timetable = TIMETABLES[name]
    minutes = {part.lesson or part.what: part.total for part in timetable.parts}
    assert sum(part.total for part in timetable.parts) == timetable.minutes, minutes


@pytest.mark.parametrize("name", TIMETABLES)
def test_a_timetable_names_what_the_notebooks_have(name):
    for part in lesson_parts([name]):
        _, sections = timetables.title_and_sections(part.lesson)
        assert [s for s in sections if s in part.sections] == list(part.sections), "unknown, or in another order"
        assert YOUR_TURN not in part.sections
        assert all(minutes > 0 for minutes in part.sections.values())
        assert all(id.startswith(f"{part.lesson}.") and find(id) for id in part.exercises)
        assert list(part.exercises) == sorted(set(part.exercises))


def test_the_days_have_every_section_of_every_lesson():
    parts = {part.lesson: part for part in lesson_parts(DAYS)}
    assert list(parts) == [path.name[:2] for path in NOTEBOOKS]
    for lesson, part in parts.items():
        _, sections = timetables.title_and_sections(lesson)
        assert list(part.sections) == [section for section in sections if section != YOUR_TURN]
        assert part.opening and part.exercises


def test_the_short_tracks_are_as_long_as_they_say():
    assert TIMETABLES["two-hours"].minutes == 120 and 330 <= TIMETABLES["one-day"].minutes <= 390
    lessons = [[part.lesson for part in TIMETABLES[track].parts if part.lesson] for track in ("two-hours", "one-day")]
    assert lessons == 2 * [["00", "05", "14", "15", "16"]]


def test_the_page_of_lessons_says_the_minutes_of_each():
    """Minutes of the core path, and of all exercises."""
    text = (ROOT / "docs" / "lessons.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d\d|a\d) .*?\| (\d+) \+ (\d+) \|", text, re.M)
    parts = {part.lesson: part for part in lesson_parts(DAYS)}
    core = {
        lesson: part.opening + sum(m for section, m in part.sections.items() if not section.startswith("Deeper: "))
        for lesson, part in parts.items()
    }
    assert [(lesson, int(minutes), int(more)) for lesson, minutes, more in rows] == [
        (lesson, core[lesson], sum(e.minutes for e in find_all() if e.id.startswith(f"{lesson}."))) for lesson in parts
    ]


def test_the_readme_shows_the_timetables():
    assert timetables.fill(README, TIMETABLES) == README, "run python -m tools.timetables"


def test_a_rendered_timetable():
    lesson = Part(lesson="02", opening=5, sections={"Predict": 20}, exercises=("02.3",))
    shown = timetables.render(Timetable("A test", 100, (lesson, Part(what="Break", minutes=70)))).splitlines()
    exercise = find("02.3")
    first = 25 + exercise.minutes
    assert shown[2] == (
        f"| 0:00 | {first} | [02 · Preallocated gather](../notebooks/02_prealloc_gather.ipynb) | opening (5), "
        f"Predict (20), **02.3** {exercise.title} ({exercise.minutes}) |"
    )
    assert shown[3] == f"| 0:{first} | 70 | Break |  |"
    assert shown[4].startswith(f"| 1:{first + 10} | **{first + 70}** |")


def test_a_timetable_without_a_place_and_a_place_without_a_timetable_are_refused():
    with pytest.raises(ValueError, match="two-hours"):
        timetables.fill("no places", TIMETABLES)
    with pytest.raises(ValueError, match="another"):
        timetables.fill("<!-- timetable: another -->\n<!-- end -->", {})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "lesson='', what=''"),
        ({"lesson": "01", "what": "Break"}, "lesson='01', what='Break'"),
        ({"what": "Break"}, "'Break' must have minutes"),
        ({"what": "Break", "minutes": 5, "opening": 5}, "nothing else"),
        ({"lesson": "01", "minutes": 5}, "lesson '01' takes the minutes of its sections"),
    ],
)
def test_a_part_of_two_kinds_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        Part(**keys)


def test_a_lesson_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'77'"):
        timetables.notebook("77")


# The tables of README.md


def table_rows(section):
    """The cells of each row below a heading, without the head of the table."""
    text = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## )", README, re.MULTILINE | re.DOTALL)[1]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def predicted_labels():
    """(lesson, label) of each predict cell, from the recorded notebooks."""
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code" and "teach.predict(" in cell.source:
                (text,) = [out.data["text/plain"] for out in cell.outputs if out.output_type == "execute_result"]
                yield path.name[:2], re.match(r'guess for "(.*)":', text)[1]


def test_there_is_a_question_for_every_predict_cell():
    asked = [(lesson, label.strip("`")) for lesson, label, *_ in table_rows("What to ask the room")]
    assert asked == list(predicted_labels())


WRONG = table_rows("The usual wrong answers")


@pytest.mark.parametrize(("id", "said"), [(row[0], row[2].strip('"')) for row in WRONG])
def test_the_checker_says_what_the_readme_quotes(id, said):
    """It is in the message of a wrong answer in the tests, or in the sentence of a mistake that the checker names."""
    of_answers = [message for _, message in wrong_answers.registered.get(id, {}).values()]
    assert any(said in message for message in [*of_answers, *wrong_answers.named(id)])


def test_every_lesson_has_a_usual_wrong_answer():
    assert {row[0][:2] for row in WRONG} == {path.name[:2] for path in NOTEBOOKS}


# The set-ups


def load(name):
    spec = importlib.util.spec_from_file_location(name, TEACHING / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def colab():
    pytest.importorskip("tomllib", reason="Colab has Python 3.11 or newer, this is older")
    return load("colab_setup")


@pytest.mark.slow
def test_colab_installs_what_lessons_import_in_the_tested_versions(colab, monkeypatch):
    calls = []
    monkeypatch.setattr(colab.subprocess, "run", lambda command, check: calls.append(command))
    monkeypatch.setattr(colab.sys, "path", [])
    colab.main()
    (command,) = calls
    assert command[1:4] == ["-m", "pip", "install"]
    assert command[command.index("-c") + 1] == str(ROOT / "constraints.txt")
    assert colab.sys.path == [str(ROOT)]
    names = {Requirement(line).name for line in command[command.index("-c") + 2 :]}
    assert imported_by_lessons() <= names | colab.LEFT_ALONE
    assert {"torch", "triton", "transformers", "duckdb"} <= names
    assert {"torch", "pandas", "hypothesis"} <= imported_by_lessons()


def test_what_is_left_alone_is_still_a_dependency(colab):
    assert colab.LEFT_ALONE <= DEPENDENCIES.keys()


def imported_by_lessons():
    """The dependencies that a cell imports, as far as module and distribution have one name."""
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    names = set()
    for node in [node for cell in cells for node in ast.walk(ast.parse(cell.source))]:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names & DEPENDENCIES.keys()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The configuration, loaded as JupyterHub does, and homes in tmp_path."""
    config = defaultdict(SimpleNamespace)
    monkeypatch.setenv("COURSE_PASSWORD", "a password")
    monkeypatch.setattr("builtins.get_config", lambda: Sections(config), raising=False)
    module = load("jupyterhub_config")
    user = SimpleNamespace(pw_dir=str(tmp_path), pw_uid=os.getuid(), pw_gid=os.getgid())
    monkeypatch.setattr(module, "getpwnam", lambda name: user)
    return module, config


class Sections:
    def __init__(self, config):
        self.config = config

    def __getattr__(self, section):
        return self.config[section]


def test_the_hub_has_thirty_learners_with_one_thread_each(hub):
    _, config = hub
    users = config["Authenticator"].allowed_users
    assert len(users) == 30 and {"learner01", "learner30"} <= users
    assert config["SharedPasswordAuthenticator"].user_password == "a password"
    assert config["Spawner"].environment["OMP_NUM_THREADS"] == "1"
    assert (ROOT / ".jupyter").samefile(config["Spawner"].environment["JUPYTER_CONFIG_PATH"])


def test_a_learner_gets_the_notebooks_once_and_no_solutions(hub, tmp_path):
    module, _ = hub
    spawner = SimpleNamespace(user=SimpleNamespace(name="learner01"))
    module.copy_notebooks(spawner)
    notebooks = tmp_path / "course" / "notebooks"
    assert sorted(path.name for path in notebooks.iterdir()) == [path.name for path in NOTEBOOKS]
    assert (tmp_path / "course" / "roseinfer" / "data" / "tiny-gpt2" / "README.md").exists()
    (notebooks / NOTEBOOKS[0].name).write_text("their work")
    module.copy_notebooks(spawner)
    assert (notebooks / NOTEBOOKS[0].name).read_text() == "their work"
