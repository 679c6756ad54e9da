"""Grid: cells in the page, a frame at a time, and the picture for those who only read."""

from __future__ import annotations

import csv
import io
import json

import pytest
import vl_convert
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from PIL import Image

from course.display.grid import VEGA, Grid
from course.display.shapes import WIDTH, Cell, Frame, Line, Panel, edge_ticks
from roseinfer.display.chart import INK


def frame_of(*cells: Cell, **panel) -> Frame:
    return Frame([Panel(cells, **panel)])


def rows_of(grid: Grid, name: str) -> list[dict[str, str]]:
    [table] = [table for table in grid.spec["data"] if table["name"] == name]
    return [*csv.DictReader(io.StringIO(table["values"]))]


def test_text_and_picture_say_the_same_with_and_without_a_kernel():
    grid = Grid([frame_of(Cell(0, 0, "a")), frame_of(Cell(0, 0, "b"))], "two frames")
    bundle, metadata = grid._repr_mimebundle_()
    assert set(bundle) == {"text/plain", VEGA, "image/png"} and bundle["text/plain"] == repr(grid) == "two frames"
    assert bundle[VEGA]["description"] == metadata["image/png"]["alt"] == "two frames"
    assert bundle["image/png"].startswith(b"\x89PNG") and WIDTH < metadata["image/png"]["width"] < WIDTH + 20


def signals_of(grid: Grid) -> dict[str, dict]:
    return {signal["name"]: signal for signal in grid.spec["signals"]}


def buttons_of(grid: Grid) -> list[str]:
    return [mark["name"] for mark in grid.spec["marks"] if "name" in mark]


def test_a_slider_goes_over_the_frames_and_a_single_frame_has_none():
    grid = Grid([frame_of(Cell(0, 0))] * 4, "", label="token")
    signals = signals_of(grid)
    assert signals["step"]["bind"] == {"input": "range", "min": 0, "max": 3, "step": 1, "name": "token 0 to 3: "}
    assert signals["step"]["value"] == 0 and buttons_of(grid) == ["play", "back", "forward"]
    single = Grid([frame_of(Cell(0, 0))], "")
    assert not any({"bind", "on"} & signal.keys() for signal in single.spec["signals"]) and buttons_of(single) == []
    assert single.spec["height"] == single.height < grid.spec["height"]


def test_choices_stand_one_after_the_other_and_what_they_share_is_kept_once():
    frames = {"few": [frame_of(Cell(0, 0, "x"), Cell(0, 1, "all"))], "many": [frame_of(Cell(0, 0, t)) for t in "xyz"]}
    grid = Grid(frames, "", choice_label="budget")
    bind = signals_of(grid)["choice"]["bind"]
    assert bind == {"input": "radio", "options": ["few", "many"], "name": "budget: "}
    assert signals_of(grid)["step"]["bind"]["max"] == 2 and grid.lengths == {"few": 1, "many": 3}
    runs = [(row["text"], row["first"], row["last"]) for row in rows_of(grid, "texts")]
    assert runs == [("x", "0", "1"), ("all", "0", "0"), ("y", "2", "2"), ("z", "3", "3")]
    assert grid.texts(0) == ["x", "all"] and grid.texts(2, "many") == ["z"]


def test_many_choices_are_a_list():
    grid = Grid({name: [frame_of(Cell(0, 0, name))] for name in "abcde"}, "")
    assert signals_of(grid)["choice"]["bind"]["input"] == "select" and buttons_of(grid) == []


def test_the_picture_of_choices_is_of_the_first_one():
    colours = {"red": "#FF0000", "blue": "#0000FF"}
    frames = {name: [frame_of(Cell(0, 0, colour=one, strength=1, outline="none"))] for name, one in colours.items()}
    found = Image.open(io.BytesIO(Grid(frames, "").png)).convert("RGB").getcolors(1000)
    assert (255, 0, 0) in {colour for _, colour in found} and (0, 0, 255) not in {colour for _, colour in found}


def test_it_compiles_with_and_without_controls():
    one = [frame_of(Cell(0, 0))]
    for frames in (one, one * 3, {"it's": one * 2, "b": one}):
        assert "<svg" in vl_convert.vega_to_svg(Grid(frames, "").spec)


def test_what_stays_is_kept_once_and_what_changes_with_its_frames():
    frames = [frame_of(Cell(0, 0, text), Cell(0, 1, "stays")) for text in "abba"]
    grid = Grid(frames, "")
    runs = [(row["text"], row["first"], row["last"]) for row in rows_of(grid, "texts")]
    assert runs == [("a", "0", "0"), ("a", "3", "3"), ("stays", "0", "3"), ("b", "1", "2")]
    assert [grid.texts(n) for n in range(4)] == [["a", "stays"], ["stays", "b"], ["stays", "b"], ["a", "stays"]]


def test_the_picture_is_of_the_frame_that_is_named_or_the_last():
    frames = [frame_of(Cell(0, 0, colour=colour, strength=1, outline="none")) for colour in ("#FF0000", "#0000FF")]
    for shown, colour in ((0, (255, 0, 0)), (None, (0, 0, 255))):
        picture = Image.open(io.BytesIO(Grid(frames, "", shown=shown).png)).convert("RGB")
        assert colour in {found for _, found in picture.getcolors(1000)}


def test_ink_is_the_themes_in_the_page_and_dark_on_paper():
    grid = Grid([frame_of(Cell(0, 0, "a", outline=INK))], "")
    assert json.dumps(grid.spec).count(INK) == 2
    picture = Image.open(io.BytesIO(grid.png)).convert("L")
    assert picture.getpixel((0, 0)) == 255 and picture.getextrema()[0] < 60


def test_panels_lie_side_by_side_while_there_is_room():
    narrow, wide = Panel([Cell(0, 0, "a", width=10)]), Panel([Cell(0, 0, "a", width=25)])
    for other, places in ((narrow, [(0, 0), (306, 0)]), (wide, [(0, 0), (0, 37)])):
        boxes = rows_of(Grid([Frame([narrow, other])], ""), "rects")
        assert [(float(box["x"]), float(box["y"])) for box in boxes] == places


def test_every_part_of_a_cell_is_drawn():
    cell = Cell(1, 2, "text", colour=1, note="note", outline="#123456", dashed=True, filled=0.25, tooltip="tip")
    grid = Grid([frame_of(cell, Cell(0, 0, hatched=True), rows="ab", columns="xyz", ticks={0: "0"}, unit="u")], "")
    fill, box = (row for row in rows_of(grid, "rects") if float(row["y"]) > 30)
    assert float(fill["width"]) == pytest.approx(float(box["width"]) / 4, abs=0.1) and fill["fill"] == "#E69F00"
    assert (box["stroke"], box["dash"], box["tooltip"]) == ("#123456", "4", "tip")
    assert grid.texts(0) == ["a", "b", "x", "y", "z", "0", "u", "text", "note"]
    assert len(rows_of(grid, "paths")) == 1  # the hatching


def test_an_arrow_has_a_head():
    lines = [Line((0, 0), (1, 1)), Line((0, 0), (1, 1), colour=0, arrow=True)]
    assert len(rows_of(Grid([frame_of(Cell(0, 0), lines=lines)], ""), "paths")) == 3


def test_a_legend_lies_below_the_tallest_frame():
    frames = [frame_of(Cell(row, 0)) for row in (0, 5)]
    grid = Grid(frames, "", legend=[Cell(0, 0, "meaning")])
    [entry] = rows_of(grid, "texts")
    assert (entry["text"], entry["first"], entry["last"]) == ("meaning", "0", "1")
    assert 6 * 24 < float(entry["y"]) < grid.height and grid.spec["width"] == WIDTH


@pytest.mark.parametrize("width", [1, 8, 9, 42, 89, 128, 192, 5000])
def test_ticks_are_few_and_round(width):
    assert 1 < len(edge_ticks(width)) <= 11


@pytest.mark.parametrize(
    "frames, shown, message",
    [
        ([], None, "frames must hold at least one frame, got none"),
        ({}, None, "frames must hold at least one choice, got none"),
        ({"a": [frame_of(Cell(0, 0))], "b": []}, None, "frames of 'b' must hold at least one frame, got none"),
        ([frame_of(Cell(0, 0))], 1, "shown must be a frame of the first choice, 0 to 0, got 1"),
    ],
)
def test_what_is_no_grid(frames, shown, message):
    with pytest.raises(ValueError, match=message):
        Grid(frames, "", shown=shown)


LONG_TEXTS = (
    "The model hands over q, k and v of the new tokens; attention joins them with the past. Ops started: 8 as_strided, "
    "4 narrow, 4 slice, 1 unsqueeze, 2 cat, 1 scaled_dot_product_attention, 1 squeeze.",
    "The append: 48 arange, 37 permute, 37 view, 30 copy_, 29 to, 26 reshape, 24 unsqueeze, 24 index_put, 20 multiply, "
    "19 add, 12 narrow, 12 where.",
)


@pytest.mark.parametrize("text", LONG_TEXTS)
def test_a_long_text_fits_the_picture_in_a_wide_font(text):
    """Linux browsers take DejaVu Sans for sans-serif."""
    grid = Grid([Frame([Panel([Cell(0, 0, "a")])], says=text)], "a text")
    lines = [row["text"] for row in rows_of(grid, "texts") if " " in row["text"]]
    assert " ".join(lines) == text
    wide = FontProperties(family="DejaVu Sans")
    assert all(TextPath((0, 0), line, size=13, prop=wide).get_extents().width < WIDTH for line in lines)
