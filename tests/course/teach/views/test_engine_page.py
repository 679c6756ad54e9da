"""engine_page: the parts and their lessons, and the way of a request with its blocks."""

from __future__ import annotations

import nbformat
import pytest

from course import teach
from course.display.board import VEGA
from course.teach.views import engine_walk
from course.teach.views.engine_page import LESSONS
from course.teach.views.engine_parts import PARTS
from roseinfer.models import load_model, load_tokenizer
from roseinfer.paths import ROOT
from roseinfer.reference import reference_generate
from stages import LADDER
from tools.shape import lessons


@pytest.fixture(scope="module")
def page():
    return teach.engine_page()


def test_every_lesson_with_a_stage_builds_a_part():
    stages = {stage.name[1:3] for stage in LADDER}
    notebooks = {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}  # the background ones build none
    assert stages < set(LESSONS) == notebooks


@pytest.mark.parametrize(
    ("lesson", "built"),
    [
        ("00", "the tokenizer, the detokenizer"),
        ("05", "the inputs, attention"),
        ("14", "the scheduler"),
        ("16", "overlap"),
    ],
)
def test_a_lesson_has_a_small_still_with_its_part(lesson, built):
    small = teach.engine_page(lesson)
    assert repr(small) == f"the engine on one page; lesson {lesson} builds: {built}"
    assert small.height <= 150 and len(small.frames) == 1
    looks = {cell.text: cell for cell in small.frames[0].panels[0].cells}
    lit = [cell.text for cell in looks.values() if cell.strength == 0.55]
    assert len(lit) == built.count(",") + 1
    assert looks["tokenizer"].dashed is False and looks["server"].dashed


@pytest.mark.parametrize("path", [path for path in lessons() if path.name[:2] in LESSONS], ids=lambda path: path.stem)
def test_a_recorded_map_is_the_one_that_the_engine_has_now(path):
    """A lesson that adds a part changes the map of every other lesson: all are recorded again."""
    cells = nbformat.read(path, as_version=4).cells
    recorded = [
        output.data[VEGA]
        for cell in cells
        for output in cell.get("outputs", [])
        if output.get("data", {}).get("text/plain", "").startswith("the engine on one page")
    ]
    number = path.name[:2]
    drawn = teach.engine_page(None if number == "00" else number)
    assert recorded == [drawn.spec], f"record it again: python -m tools.record notebooks/{path.name}"


def test_an_unknown_lesson_is_refused():
    with pytest.raises(ValueError, match="lesson must be one of 00, 01, .*, got '77'"):
        teach.engine_page("77")


def test_the_page_says_what_the_request_takes_and_what_each_part_does(page):
    first, *parts = repr(page).splitlines()
    assert first == (
        "the engine on one page: a request of 6 prompt tokens and 4 new tokens takes 4 steps of at most 8 tokens, "
        "and 3 blocks of 4 tokens"
    )
    assert len(parts) == len(PARTS) and parts[-2] == "KV pool: keeps K and V in blocks (lesson 01, 02, 03, 04, 08)"


def test_a_request_goes_from_its_text_to_its_last_token(page):
    headings = [frame.heading.split(". ")[1] for frame in page.frames]
    assert headings[:3] == ["Arrival: tokenizer", "Arrival: queue", "Prefill: scheduler"]
    assert [heading for heading in headings if "scheduler" in heading][1:] == [
        "Decode step 1: scheduler",
        *(f"Decode step {step}: scheduler, inputs, launch" for step in (2, 3)),
    ]
    assert headings[-1] == "End: detokenizer, KV pool"


def text_in(page, number):
    """The request's text as a frame shows it."""
    line = [cell for cell in page.frames[number].panels[0].cells if cell.row == engine_walk.TEXT]
    return "".join(str(cell.text) for cell in line[1:]).replace("␣", " ")


def test_the_text_grows_by_the_tokens_that_the_model_chooses(page):
    ids = load_tokenizer("tiny").encode(engine_walk.PROMPT_TEXT).ids
    [chosen] = reference_generate(load_model("tiny", device="cpu"), [ids], max_tokens=4)
    texts = [text_in(page, number) for number in range(len(page.frames))]
    tokens = [load_tokenizer("tiny").decode([*ids, *chosen[:n]]) for n in range(5)]
    assert list(dict.fromkeys(texts)) == tokens and texts == sorted(texts, key=len)
