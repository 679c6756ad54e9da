"""Recorded notebooks agree with themselves, with the course, and with the posts that they show."""

from __future__ import annotations

import html
import re
from functools import cache

import nbformat
import pandas as pd
import pytest
import torch
from notebook_text import table, texts

from course import teach
from roseinfer.display.table import Table
from roseinfer.paths import ROOT

LESSONS = pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))])
# What a lesson calls the post's to the last one. Slices and views depend on the torch, and lesson 03 says so.
AS_IN_POST = {
    "02_prealloc_gather": ["copy_", "select", "fill_", "zero_", "empty", "empty_like", "zeros", "zeros_like"],
    "03_select_append": ["select", "copy_"],
}
# A device in a printed tensor, and calls for several ranks: on GPUs each of them needs one of its own.
OF_A_DEVICE = re.compile(r"device='|device\(type=|cuda:\d")
RANKS = re.compile(r"LLM\([^)]*tensor_parallel_size=[^)]*\)")
NUMBER_WITH_UNIT = re.compile(r"\d ?(ms|µs|us|tok/s|%|[GM]B/s|GFLOP/s)(?!\w)|×\s?\d")
# A printed `: False`, a formula that does not explain its number, a course stage with wrong tokens.
FAILED = re.compile(r": False\b|does not explain it")
OF_A_STAGE = re.compile(
    r"(s\d\d_\w+): tokens against both oracles|\d+ sequences?, prompt of \d+ tokens?, \d+ new tokens each"
)


@cache
def cells_of(name: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells


def failed_lines(text: str) -> list[str]:
    """Return the lines in which an output says that something is not as claimed."""
    is_stage = OF_A_STAGE.match(text)
    return [line for line in text.splitlines() if FAILED.search(line) or is_stage and "differs" in line]


@LESSONS
def test_every_check_that_a_lesson_prints_has_passed(name):
    code = [cell for cell in cells_of(name) if cell.cell_type == "code"]
    of_the_course = [cell for cell in code if "exercise" not in cell.metadata.get("tags", [])]
    assert [line for cell in of_the_course for text in texts(cell) for line in failed_lines(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "cats 24 = layers x 2: False",
        "guessed\n  formula   12 x 2 = 24, does not explain it",
        "s01_naive_cat: tokens against both oracles\nprompt tokens  reference\n3  differs from 4",
        "8 sequences, prompt of 16 tokens, 32 new tokens each, float32\nstage  tokens\ns01_naive_cat  differs",
    ],
)
def test_a_failed_check_is_found(text):
    assert len(failed_lines(text)) == 1


def test_a_class_that_is_shown_to_be_wrong_may_differ():
    assert failed_lines("LongestPosition: tokens against both oracles\nreference\ndiffers from token 4") == []


@pytest.mark.parametrize("name", AS_IN_POST)
def test_counts_that_a_lesson_calls_the_posts_are_the_posts(name):
    rows = [row for text in all_texts(name) for row in table(text)[1] if "n_post" in row]
    judged = [row for row in rows if row["name"].removeprefix("aten::") in AS_IN_POST[name]]
    assert {row["name"].removeprefix("aten::") for row in judged} == set(AS_IN_POST[name])
    assert [row for row in judged if row["n_post"] != row["n_here"]] == []


@LESSONS
def test_a_progress_cell_agrees_with_the_course(name):
    recorded = [page for text, page in pages(name) if text.startswith("progress of the course")]
    code = [cell for cell in cells_of(name) if cell.cell_type == "code"]
    assert len(recorded) == sum("teach.progress(" in cell.source for cell in code)
    assert [words(page) for page in recorded] == [words(teach.progress().to_html())] * len(recorded)


@LESSONS
def test_an_exercise_card_has_the_exercises_own_words(name):
    cards = {text.split()[1].rstrip(":"): page for text, page in pages(name) if text.startswith("exercise ")}
    assert cards
    assert [id for id, page in cards.items() if words(page) != words(teach.exercise(id).to_html())] == []


@LESSONS
def test_no_time_or_share_is_typed_into_prose(name):
    cells = enumerate(cells_of(name))
    assert [n for n, cell in cells if cell.cell_type == "markdown" and NUMBER_WITH_UNIT.search(cell.source)] == []


@LESSONS
def test_a_lesson_is_the_same_on_a_gpu(name):
    assert [text for text in all_texts(name) if OF_A_DEVICE.search(text)] == []
    calls = [call for cell in cells_of(name) if cell.cell_type == "code" for call in RANKS.findall(cell.source)]
    assert [call for call in calls if 'device="cpu"' not in call] == []


def test_what_only_a_gpu_prints_is_found():
    assert OF_A_DEVICE.search(repr(torch.zeros(1, device="meta"))) and OF_A_DEVICE.search(repr(torch.device("cpu")))
    assert not OF_A_DEVICE.search("the host and the device take turns")
    assert RANKS.findall('LLM("tiny", tensor_parallel_size=2) or LLM("tiny")') == [
        'LLM("tiny", tensor_parallel_size=2)'
    ]


@pytest.mark.parametrize("text", ["it takes 3 ms", "3.5 µs", "grows by 17%", "×2.5 faster", "55 GB/s"])
def test_a_typed_number_is_found(text):
    assert NUMBER_WITH_UNIT.search(text) and not NUMBER_WITH_UNIT.search("[8, 8], 2 x 3, lesson 03, layers × batch")


def test_what_is_read_of_a_table():
    rows = [{"name": "a b", "n": 12}, {"name": "", "n": 3}]
    shown = repr(Table(pd.DataFrame(rows), exact=list(rows[0]), title="A title"))
    assert table(shown) == ("A title", [{k: str(v) for k, v in row.items()} for row in rows])
    assert table("no table") == ("", [])


def all_texts(name):
    return [text for cell in cells_of(name) if cell.cell_type == "code" for text in texts(cell)]


def pages(name):
    """(text/plain, text/html) of every output that has both."""
    for cell in cells_of(name):
        for output in cell.get("outputs", []):
            if {"text/plain", "text/html"} <= output.get("data", {}).keys():
                yield output.data["text/plain"], output.data["text/html"]


def words(page):
    """The visible text of a page, without the path where progress is kept."""
    page = re.sub(r"<(style|script)\b.*?</\1>|<p class='rose-muted'>.*?</p>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", page)).split()
