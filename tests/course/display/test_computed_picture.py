"""ComputedPicture: a spec that computes in the page, its text and its still."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from course.display.computed_picture import ComputedPicture, legend, mark, quoted, write
from course.display.grid import VEGA
from course.display.shapes import WIDTH
from roseinfer.display.chart import INK


@pytest.fixture
def picture():
    """A box as wide as ten times the step, and twice the step as a text."""
    box = mark("rect", x=0, y=20, height=40, width="10 * step", fill=quoted("#FF0000"))
    gone = mark("rect", x=0, y=20, height=40, width=600, fill=quoted("#0000FF"), drawn_if="step > 8")
    return ComputedPicture("ten boxes", 80, [], [box, gone, write("2 * step", 0, 12)], steps=9, still={"step": 5})


def columns_of(image: Image.Image, colour: tuple[int, int, int]) -> int:
    across = image.height // 2
    return sum(image.getpixel((x, across)) == colour for x in range(image.width))


def test_the_page_begins_at_the_first_step_and_the_still_is_of_what_is_shown(picture):
    bundle, metadata = picture._repr_mimebundle_()
    assert bundle["text/plain"] == bundle[VEGA]["description"] == metadata["image/png"]["alt"] == "ten boxes"
    values = {signal["name"]: signal.get("value") for signal in bundle[VEGA]["signals"]}
    assert (values["play"], values["step"]) == (False, 0)
    image = Image.open(io.BytesIO(bundle["image/png"])).convert("RGB")
    assert columns_of(image, (255, 0, 0)) == pytest.approx(50 * image.width / metadata["image/png"]["width"], abs=2)
    assert columns_of(image, (0, 0, 255)) == 0
    assert WIDTH < metadata["image/png"]["width"] < WIDTH + 30


def test_controls_are_in_the_page_and_not_in_the_still(picture):
    page, still = picture.spec, picture.with_values()
    assert {"play", "back", "forward"} <= {one.get("name") for one in page["marks"]}
    assert len(still["marks"]) == 3 and still["height"] == 80 < page["height"]
    single = ComputedPicture("a box", 80, [], picture.drawing["marks"][:1])
    assert single.spec["height"] == 80 and single.spec["signals"] == []


def test_texts_are_those_that_the_page_computes(picture):
    assert picture.texts() == ["0"] and picture.texts(step=7) == ["14"]


def test_ink_is_the_themes_in_the_page_and_dark_on_paper(picture):
    assert INK in json.dumps(picture.spec) and INK not in json.dumps(picture.with_values())


def test_a_legend_puts_each_meaning_right_of_its_box():
    marks = legend({"small": {"fill": quoted("#FF0000")}, "a line": {"height": 2}}, y=10)
    places = [one["encode"]["update"]["x"]["value"] for one in marks]
    assert places == sorted(places) and [one["type"] for one in marks] == ["rect", "text"] * 2
    assert marks[2]["encode"]["update"]["height"] == {"value": 2}
