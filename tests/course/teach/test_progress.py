"""teach.progress and teach.predictions: what is kept of a learner's attempts and guesses, where, and what breaks."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from shown import views

from course import teach
from course.teach.journal import entries as journal
from course.teach.journal.predict import factor_between
from course.teach.journal.predictions import Guess
from roseinfer.paths import ROOT
from tools.notebooks import kernel_env

pytestmark = pytest.mark.slow


CONTRACT = re.compile(r"progress of the course")


def right(p, n):
    return sum(p + i for i in range(n)), p + n - 1


def wrong(p, n):
    return p, n


def tokens_computed(prompt_len, new_tokens): ...  # as it was handed out


@pytest.fixture
def record(tmp_path, monkeypatch) -> Path:
    """The file in which this test's progress is kept."""
    path = tmp_path / "deep" / "progress.jsonl"
    monkeypatch.setenv("ROSEINFER_PROGRESS", str(path))
    journal._warn_once.cache_clear()
    return path


# progress


def test_attempts_count_up_to_the_first_pass_and_a_pass_stays(record):
    for answer in (tokens_computed, wrong, wrong, right, wrong, right):
        teach.check("00.1", answer)
    teach.check("00.3", wrong)
    seen = teach.progress()
    assert seen.passed == {"00.1"} and seen.attempts == Counter({"00.1": 3, "00.3": 1})
    html = seen.to_html()
    assert 'title="00.1 Work that the cache saves: passed, 3 attempts">✓1<' in html
    assert 'title="00.3 Bytes of a KV cache: not yet, 1 attempt">…3<' in html
    assert 'title="00.2 Your own decode loop: not tried, ' in html
    assert "Tried, not passed yet:</p><ul><li>00.3 Bytes of a KV cache: not yet, 1 attempt</li></ul>" in html
    assert str(record) in html


def test_the_text_is_the_same_whatever_is_passed(record):
    before = repr(teach.progress())
    teach.check("00.1", right)
    assert repr(teach.progress()) == before and CONTRACT.fullmatch(before)
    assert "0 exercises" not in before


def test_the_grid_has_a_column_per_lesson_and_a_cell_per_exercise(record):
    seen = teach.progress()
    html = seen.to_html()
    lessons = {e.id.partition(".")[0] for e in seen.exercises}
    assert [html.count(f">{lesson}</th>") for lesson in lessons] == [1] * len(lessons)
    assert html.count("title=") == html.count(": not tried, ") == len(seen.exercises)
    assert "Tried, not passed yet" not in html
    _, readable = views(seen)
    assert "passed" in readable


def test_what_is_left_and_what_matters_most(record):
    nothing = teach.progress()
    total = sum(e.minutes for e in nothing.exercises)
    greeting = f"<b>{len(nothing.exercises)} exercises</b> go with the lessons, about {round(total / 60)} hours in all."
    assert f"{greeting} Begin with: 00.1, Work that the cache saves (5 minutes)." in nothing.to_html()
    for e in nothing.exercises:
        journal.note_attempt(e.id, e.id != "06.2")
    assert "Most important now: 06.2, A search that finds an unsound key (" in teach.progress().to_html()
    every = len(nothing.exercises)
    assert f"<b>{every - 1} of {every} exercises passed</b>" in teach.progress().to_html()
    journal.note_attempt("06.2", True)
    done = teach.progress()
    assert done.open == [] and "the whole course" in done.to_html() and "Most important" not in done.to_html()


def test_a_reset_starts_again_and_keeps_the_old_file(record):
    for _ in range(2):
        teach.check("00.1", right)
        fresh = teach.progress(reset=True)
        assert fresh.passed == frozenset() and "Started again; the old record is in" in fresh.to_html()
        assert not record.exists()
    kept = sorted(path.name for path in record.parent.iterdir())
    assert kept == ["progress.before-reset-1.jsonl", "progress.before-reset-2.jsonl"]
    assert "Started again" not in teach.progress(reset=True).to_html(), "there was nothing to reset"


@pytest.mark.nightly  # each look at the record reads the file again, as in the tests above
def test_a_restart_of_the_kernel_forgets_nothing(record):
    code = "from course import teach; teach.check('00.1', lambda p, n: (sum(p + i for i in range(n)), p + n - 1))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert teach.progress().passed == {"00.1"}


WRITER = """
import sys
from course.teach.journal import entries
for i in range(200):
    entries.note_attempt(f"{sys.argv[1]}.{i}", True)
"""


@pytest.mark.nightly
def test_notebooks_that_are_open_at_once_lose_nothing_of_each_others(record):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, lesson]) for lesson in ("01", "02", "03")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    entries = journal.entries()
    assert {e["exercise"] for e in entries} == {f"{n}.{i}" for n in ("01", "02", "03") for i in range(200)}
    assert len(entries) == 600


# Where it is kept, and where not.


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, "home/.local/share/roseinfer/progress.jsonl"),
        ({"ROSEINFER_PROGRESS": ""}, "home/.local/share/roseinfer/progress.jsonl"),
        ({"XDG_DATA_HOME": "data"}, "data/roseinfer/progress.jsonl"),
        ({"ROSEINFER_PROGRESS": "~/mine.jsonl", "XDG_DATA_HOME": "data"}, "home/mine.jsonl"),
        ({"ROSEINFER_PROGRESS": "off"}, None),
    ],
    ids=["data folder", "empty", "XDG_DATA_HOME", "named", "off"],
)
def test_where_the_file_is(monkeypatch, environ, place):
    for name in ("ROSEINFER_PROGRESS", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "home", **environ}.items():
        monkeypatch.setenv(name, value)
    assert journal.place() == (place and Path(place))


def test_nothing_is_kept_when_it_is_off(tmp_path, monkeypatch):
    monkeypatch.setenv("ROSEINFER_PROGRESS", "off")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    teach.check("00.1", right)
    teach.reveal(teach.predict("copies", 3), 4)
    assert teach.progress(reset=True).passed == frozenset() and list(tmp_path.iterdir()) == []
    assert "This run kept no record: <code>ROSEINFER_PROGRESS=off</code>." in teach.progress().to_html()


def test_recorded_and_compared_notebooks_and_these_tests_keep_nothing(monkeypatch):
    assert os.environ["ROSEINFER_PROGRESS"] == os.environ["ROSEINFER_MY_ENGINE"] == "off"
    monkeypatch.setenv("ROSEINFER_PROGRESS", "/mine.jsonl")
    assert kernel_env()["ROSEINFER_PROGRESS"] == "off"
    assert kernel_env().keys() - {"ROSEINFER_PROGRESS"} == {n for n in os.environ if not n.startswith("PYTEST_")} - {
        "ROSEINFER_PROGRESS"
    }


# What breaks.


def test_damaged_lines_are_left_out(record):
    teach.check("00.1", right)
    damaged = [
        b'{"exercise": "00.3", "pas',
        b"\xff\xfe",
        b"[]",
        b'{"x": 1}',
        b'{"exercise": 1, "passed": true}',
        b'{"prediction": "a", "guess": NaN, "measured": 1}',
        b'{"prediction": "a", "guess": true, "measured": 1}',
        b'{"prediction": "a", "guess": 1, "measured": "2"}',
    ]
    with open(record, "ab") as file:
        file.write(b"\n" + b"\n".join(damaged))
    teach.check("00.3", wrong)  # after a line that was cut off
    seen = teach.progress()
    assert seen.passed == {"00.1"} and seen.attempts["00.3"] == 1


def blocked(path: Path) -> Path:
    """A path that not even root can write: below a file."""
    path.parent.mkdir(parents=True)
    path.parent.joinpath("file").touch()
    return path.parent / "file" / "progress.jsonl"


def test_a_place_that_cannot_be_written_warns_once_and_goes_on(record, monkeypatch, recwarn):
    monkeypatch.setenv("ROSEINFER_PROGRESS", str(blocked(record)))
    assert all(teach.check("00.1", right) for _ in range(3))
    teach.predict("copies", 3)
    assert len(recwarn) == 1
    assert re.match("your progress is not kept: .*Set ROSEINFER_PROGRESS to a file", str(recwarn[0].message))
    assert CONTRACT.fullmatch(repr(teach.progress()))


def test_a_place_that_cannot_be_read_warns_and_goes_on(record, recwarn):
    record.mkdir(parents=True)
    assert teach.progress().passed == frozenset() and teach.predictions().guesses == []
    assert len(recwarn) == 1 and "your progress cannot be read" in str(recwarn[0].message)


def test_no_home_is_no_reason_to_stop(record, monkeypatch, recwarn):
    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert teach.check("00.1", right)
    assert teach.predictions().guesses == []
    assert [str(w.message).partition(":")[0] for w in recwarn] == [
        "your progress is not kept",
        "your progress cannot be read",
    ]


# predictions


def test_a_number_by_the_clock_is_shown_and_not_compared():
    revealed = teach.reveal(teach.predict("speed-up", 3), 2.71828, timed=True)
    assert repr(revealed) == "speed-up\n  measured  by the clock\n  guess     3"
    assert "2.72" in revealed.to_html() and "×1.1 above" in revealed.to_html()


def test_an_answer_without_a_guess_is_behind_a_click():
    assert "<details><summary>You have not guessed yet" in teach.reveal(teach.predict("copies"), 4).to_html()
    assert "<details>" not in teach.reveal(teach.predict("copies", 3), 4).to_html()


def test_guesses_meet_their_numbers_and_the_first_revealed_one_counts(record):
    teach.predict("copies", 10)
    copies = teach.predict("copies", 96)  # thought again before it was measured
    teach.predict("slices", 5)
    teach.reveal(teach.predict("launches"), 7)  # no guess, nothing to judge
    teach.reveal(copies, 192, formula="12 x 16", value=192)
    teach.reveal(teach.predict("copies", 192), 192)  # known by now
    seen = teach.predictions()
    assert seen.guesses == [Guess("copies", 96, 192)] and seen.waiting == 1
    assert "Guessed, not measured yet: 1." in seen.to_html()
    assert "1 of 1 within a factor of 2; furthest off: copies, 2 times too low." in seen.to_html()


def test_the_text_of_predictions_does_not_depend_on_the_guesses(record):
    empty = teach.predictions()
    assert "No guess has been measured yet." in empty.to_html() and "<img" not in empty.to_html()
    teach.reveal(teach.predict("copies", 10), 20)
    assert repr(teach.predictions()) == repr(empty)


def test_the_plot_has_words(record):
    for label, guess, measured in (("a < b", 5, 10), ("b", 30.5, 10.0), ("c", 7, 7), ("d", 0, 4), ("e", -1, -1)):
        teach.reveal(teach.predict(label, guess), measured)
    html = teach.predictions().to_html()
    assert "<b>3 of 5 within a factor of 2; furthest off: d, 4 away.</b>" in html
    (alt,) = re.findall('<img alt="(.*?)"', html)
    assert alt.startswith("3 guesses over their measured numbers, on a logarithmic axis. 3 of 5 within")
    (png,) = re.findall('base64,(.*?)"', html)
    assert base64.b64decode(png).startswith(b"\x89PNG")
    rows = [re.sub("<.*?>", "|", row) for row in re.findall("<tr><td .*?</tr>", html)]
    assert [re.sub(r"\|+", "|", row) for row in rows] == [
        "|1|5|10|a &lt; b|2 times too low|",
        "|2|30.5|10|b|3.05 times too high|",
        "|3|7|7|c|exactly right|",
        "|4|0|4|d|4 away|",
        "|5|-1|-1|e|exactly right|",
    ]


def test_only_numbers_without_a_place_on_the_axes_make_a_table_alone(record):
    teach.reveal(teach.predict("zeros left", 3), 0)
    html = teach.predictions().to_html()
    assert "<img" not in html and "3 away" in html and "0 of 1 within" in html


def test_exact_guesses_are_said_to_be(record):
    teach.reveal(teach.predict("copies", 192), 192)
    assert "1 of 1 within a factor of 2, all exact" in teach.predictions().to_html()


@pytest.mark.parametrize(
    ("guess", "measured", "factor"),
    [(1, 1, 1), (2, 1, 2), (1, 4, 4), (0, 0, 1), (-3, -3, 1), (0, 1, float("inf")), (-2, -1, float("inf"))],
)
def test_the_factor_between_two_numbers(guess, measured, factor):
    assert factor_between(guess, measured) == factor


def test_no_two_predictions_of_the_course_have_one_label():
    """predictions tells guesses apart by their labels."""
    label = re.compile(r"""predict\(\s*f?(["'])(?P<label>.*?)\1""")
    labels = Counter(
        found["label"]
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
        for found in label.finditer(cell.source)
    )
    assert len(labels) >= 10
    assert [label for label, n in labels.items() if n > 1] == []
