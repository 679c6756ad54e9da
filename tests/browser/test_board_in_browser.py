"""Board in a page of its own: its marks are clicked, its choices chosen, and its slider moved."""

from __future__ import annotations

import pytest
import vl_convert

from course.display.board import Board, Cell, Frame, Panel
from course.display.board_controls import FRAME_MS

pytestmark = pytest.mark.browser
LENGTHS = {"budget 16": 5, "budget 64": 3}


def frame_of(text: str) -> Frame:
    return Frame([Panel([Cell(0, 0, text, width=9)])])


@pytest.fixture
def page(browser, tmp_path):
    frames = {name: [frame_of(f"{name}: {n}") for n in range(length)] for name, length in LENGTHS.items()}
    html = vl_convert.vega_to_html(Board(frames, "two runs").spec, bundle=True, renderer="svg")
    (tmp_path / "grid.html").write_text(html, encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "grid.html").as_uri())
    yield page
    page.close()


def shows(page, *texts: str) -> None:
    for text in texts:
        page.locator("svg.marks text").filter(has_text=text).wait_for()


def test_marks_that_are_clicked_move_it(page):
    def click(name):
        page.get_by_role("button", name=name).click()

    shows(page, "budget 16: 0", "step 0 of 4")
    click("forward")
    click("forward")
    click("back")
    shows(page, "budget 16: 1", "step 1 of 4")
    click("play")
    shows(page, "budget 16: 4", "step 4 of 4")
    page.get_by_role("button", name="play").wait_for()  # at the end it has stopped
    click("play")
    shows(page, "budget 16: 1")  # from the beginning
    click("stop")
    before = page.locator("svg.marks").text_content()
    page.wait_for_timeout(2 * FRAME_MS)
    assert page.locator("svg.marks").text_content() == before


def test_a_shorter_choice_stays_at_its_last_frame(page):
    page.locator("input[type=range]").fill("4")
    shows(page, "budget 16: 4")
    page.locator("input[type=radio]").nth(1).click()
    shows(page, "budget 64: 2", "step 2 of 2")
    page.get_by_role("button", name="back").click()
    shows(page, "budget 64: 1", "step 1 of 2")
    page.locator("input[type=radio]").nth(0).click()
    shows(page, "budget 16: 1")
