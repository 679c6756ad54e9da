"""What a skeptic with a pencil would find: no output of the course contradicts another, or what stands above it."""

from __future__ import annotations

import html
import re

import nbformat
import pandas as pd
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course import teach
from roseinfer.display.chart import VEGA_LITE
from roseinfer.display.table import Table
from roseinfer.models import load_model
from roseinfer.paths import ROOT
from roseinfer.profiling import Machine
from roseinfer.profiling.floors import MIB
from tools.contradictions import (
    Said,
    cold_timings,
    contradictions,
    counts,
    failed_checks,
    literal_lists,
    rates,
    table,
    texts,
)

NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
LESSONS = pytest.mark.parametrize("name", NOTEBOOKS)
# What a lesson calls the post's to the last one. Slices and views depend on the torch, and lesson 03 says so.
AS_IN_POST = {
    "02_prealloc_gather": ["copy_", "select", "fill_", "zero_", "empty", "empty_like", "zeros", "zeros_like"],
    "03_select_append": ["select", "copy_"],
}
NUMBER_WITH_UNIT = re.compile(r"\d ?(ms|µs|us|tok/s|%|[GM]B/s|GFLOP/s)(?!\w)|×\s?\d")


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny", device="cpu").config


def notebook(*outputs, source="1"):
    """One cell for each output: a text, or a mapping from mime types."""
    cells = []
    for output in outputs:
        data = {"text/plain": output} if isinstance(output, str) else output
        cells.append(new_code_cell(source, outputs=[new_output("display_data", data=data)]))
    return new_notebook(cells=cells)


def shown_table(title, *rows):
    return repr(Table(pd.DataFrame(rows), exact=list(rows[0]), title=title))


def race_row(copies=128, tokens="equal"):
    counts = {"copies": copies, "cats": 16, "selects": 256, "bytes copied": "4,669,440"}
    return {"stage": "s01_naive_cat", **counts, "tokens": tokens}


def race(copies, seconds="0.185", tokens="equal"):
    title = "8 sequences, prompt of 16 tokens, 32 new tokens each, float32"
    note = f"Floor of a step at context 32: {seconds} ms, 43,322 tok/s, set by reading."
    return {"text/plain": shown_table(title, race_row(copies=copies, tokens=tokens)), "text/html": note}


RACE = "teach.race([NaiveCat], model, batch_size=8)"
SHAPES = 'teach.compare_shapes([NaiveCat], model, {"eight": [32] * 8})'


# Checks that fail


@LESSONS
def test_every_check_that_a_lesson_prints_has_passed(name):
    assert failed_checks(NOTEBOOKS[name]) == []


@pytest.mark.parametrize(
    "text",
    [
        "cats 24 = layers x 2: False",
        "guessed\n  formula   12 x 2 = 24, does not explain it",
        shown_table("s01_naive_cat: tokens against both oracles", {"prompt tokens": 3, "reference": "differs from 4"}),
        race(128, tokens="differs")["text/plain"],
    ],
)
def test_a_failed_check_is_found(text):
    assert len(failed_checks(notebook("all is well: True", text))) == 1


def test_a_class_that_is_shown_to_be_wrong_may_differ():
    wrong = shown_table("LongestPosition: tokens against both oracles", {"reference": "differs from token 4"})
    assert failed_checks(notebook(wrong)) == []


# Timed objects that were not warm


@LESSONS
def test_every_timed_object_of_a_lesson_was_warm(name):
    assert cold_timings(NOTEBOOKS[name]) == []


def step_times(*steps):
    """A chart as draw_step_times makes it."""
    rows = "".join(f'a run,{tokens},{ms},"{kind}"\n' for tokens, ms, kind in steps)
    return {"text/plain": "how long steps took", VEGA_LITE: {"data": {"values": "run,tokens,ms,step\n" + rows}}}


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("12 requests, 234 tokens, 3 graphs captured meanwhile", "3 graphs captured meanwhile"),
        ("graphs captured meanwhile: 4", "graphs captured meanwhile: 4"),
        (
            # What lesson 14 showed: first steps of a size, called replayed.
            step_times(*[(4, 16.0, "decode only, replayed")] * 7, (1, 70.0, "decode only, replayed")),
            "1 of 8 replayed steps take over 2 x the median",
        ),
    ],
)
def test_a_timed_object_that_was_not_warm_is_found(output, found):
    assert cold_timings(notebook("all is well", output)) == [f"cell 1: {found}"]


@pytest.mark.parametrize(
    "output",
    [
        "graphs captured meanwhile: 0",
        step_times(*[(4, 16.0, "decode only; replayed")] * 20, (1, 70.0, "decode only; replayed")),  # a busy moment
        step_times(*[(4, 16.0, "decode only; replayed")] * 4, (64, 90.0, "with a prompt"), (64, 90.0, "with a prompt")),
        step_times(*[(n, 70.0, "decode only; captures its graph") for n in (1, 2)], (4, 16.0, "decode only; replayed")),
    ],
)
def test_marked_captures_and_single_slow_steps_are_no_contradiction(output):
    assert cold_timings(notebook(output)) == []


# Numbers that stand twice


def test_counts_that_stand_twice_are_the_same():
    said = [one for name, nb in NOTEBOOKS.items() for one in counts(name, nb)]
    assert len(said) > len({one.about for one in said}) + 10, "next to nothing stands twice: are they still read?"
    assert contradictions(said) == []


def test_other_counts_of_one_row_are_found():
    said = [*counts("00", notebook(race(128), source=RACE)), *counts("01", notebook(race(192), source=RACE))]
    [found] = contradictions(said)
    assert "('128', '16', '256') in 00[0], ('192', '16', '256') in 01[0]" in found


@pytest.mark.parametrize(("copies", "found"), [(128, 0), (64, 1)])
def test_a_race_and_a_comparison_of_one_batch_agree(copies, found):
    compared = {"batch": "eight", "cached tokens": 256, **race_row(copies=copies)}
    nb = new_notebook(
        cells=notebook(race(128), source=RACE).cells + notebook(shown_table("", compared), source=SHAPES).cells
    )
    assert len(contradictions(counts("00", nb))) == found


def test_floors_of_all_lessons_are_those_of_one_machine(tiny):
    said = [one for name, nb in NOTEBOOKS.items() for one in rates(name, nb, tiny)]
    assert said and contradictions(said) == []


@pytest.mark.parametrize(("seconds", "found"), [("0.190", 0), ("0.400", 1)])
def test_a_floor_of_another_machine_is_found(tiny, seconds, found):
    rates_shown = Machine("a machine", "cpu", torch.float32, 1e10, 2e11, {}, cached_reads={8 * MIB: 5.5e10}).facts()
    machine = Table.of(rates_shown)._repr_mimebundle_()
    said = list(rates("00", notebook(machine, race(128, seconds)), tiny))
    assert [one.about for one in said] == ["reading 8 MiB", "arithmetic", "reading 8 MiB"]
    assert len(contradictions(said)) == found


@pytest.mark.parametrize("raced", ["[NaiveCat, OneTable], gpt2", "contenders, gpt2"])
def test_a_floor_is_of_the_model_that_was_raced(tiny, raced):
    plain = notebook(race(128), source="teach.race([NaiveCat], model, batch_size=8)")
    loads = 'gpt2 = load_model("random:gpt2", device="cpu")'
    other = notebook(race(128), source=f"{loads}\nteach.race({raced}, batch_size=8)")
    [tiny_read], [gpt2_read] = list(rates("00", plain, tiny)), list(rates("01", other, tiny))
    assert (tiny_read.about, gpt2_read.about) == ("reading 8 MiB", "reading 256 MiB")
    assert gpt2_read.value > 30 * tiny_read.value


def test_numbers_may_be_a_little_apart_and_nothing_else_may():
    near = [Said("a", "GB/s", 50.0), Said("b", "GB/s", 55.0)]
    assert contradictions([*near, Said("a", "x", "1"), Said("b", "y", "2")]) == []
    assert contradictions([*near, Said("c", "GB/s", 90.0)]) == ["GB/s: 50.0 in a, 90.0 in c"]
    assert contradictions([Said("a", "x", "1"), Said("b", "x", "2")]) == ["x: 1 in a, 2 in b"]


@pytest.mark.parametrize("name", AS_IN_POST)
def test_counts_that_a_lesson_calls_the_posts_are_the_posts(name):
    rows = [row for text in all_texts(name) for row in table(text)[1] if "n_post" in row]
    judged = [row for row in rows if row["name"].removeprefix("aten::") in AS_IN_POST[name]]
    assert {row["name"].removeprefix("aten::") for row in judged} == set(AS_IN_POST[name])
    assert [row for row in judged if row["n_post"] != row["n_here"]] == []


# What the course says of itself


@LESSONS
def test_a_progress_cell_agrees_with_the_course(name):
    recorded = [page for text, page in pages(name) if text.startswith("progress of the course")]
    code = [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"]
    assert len(recorded) == sum("teach.progress(" in cell.source for cell in code)
    assert [words(page) for page in recorded] == [words(teach.progress().to_html())] * len(recorded)


@LESSONS
def test_an_exercise_card_has_the_exercises_own_words(name):
    cards = {text.split()[1].rstrip(":"): page for text, page in pages(name) if text.startswith("exercise ")}
    assert cards
    assert [id for id, page in cards.items() if words(page) != words(teach.exercise(id).to_html())] == []


@LESSONS
def test_no_time_or_share_is_typed_into_prose(name):
    cells = enumerate(NOTEBOOKS[name].cells)
    assert [n for n, cell in cells if cell.cell_type == "markdown" and NUMBER_WITH_UNIT.search(cell.source)] == []


@pytest.mark.parametrize("text", ["it takes 3 ms", "3.5 µs", "grows by 17%", "×2.5 faster", "55 GB/s"])
def test_a_typed_number_is_found(text):
    assert NUMBER_WITH_UNIT.search(text) and not NUMBER_WITH_UNIT.search("[8, 8], 2 x 3, lesson 03, layers × batch")


def test_what_is_read_of_a_cell():
    rows = [{"name": "a b", "n": 12}, {"name": "", "n": 3}]
    assert table(shown_table("A title", *rows)) == ("A title", [{k: str(v) for k, v in row.items()} for row in rows])
    assert table("no table") == ("", [])
    source = 'shapes = {"a": [8] * 7 + [200], "b": n, "c": [f(1)], "d": 3}'
    assert literal_lists(source) == {"a": [8] * 7 + [200]}


def all_texts(name):
    return [text for cell in NOTEBOOKS[name].cells if cell.cell_type == "code" for text in texts(cell)]


def pages(name):
    """(text/plain, text/html) of every output that has both."""
    for cell in NOTEBOOKS[name].cells:
        for output in cell.get("outputs", []):
            if {"text/plain", "text/html"} <= output.get("data", {}).keys():
                yield output.data["text/plain"], output.data["text/html"]


def words(page):
    """The visible text of a page, without the path where progress is kept."""
    page = re.sub(r"<(style|script)\b.*?</\1>|<p class='rose-muted'>.*?</p>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", page)).split()
