"""Board: cells in the page, a frame at a time, and the picture for those who only read."""

from __future__ import annotations

import csv
import io
import json

import pytest
import vl_convert
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from PIL import Image

from course.display.board import VEGA, WIDTH, Board, Cell, Frame, Line, Panel, edge_ticks, flow
from roseinfer.display.chart import INK


def frame_of(*cells: Cell, **panel) -> Frame:
    return Frame([Panel(cells, **panel)])


def rows_of(board: Board, name: str) -> list[dict[str, str]]:
    [table] = [table for table in board.spec["data"] if table["name"] == name]
    return [*csv.DictReader(io.StringIO(table["values"]))]


def test_text_and_picture_say_the_same_with_and_without_a_kernel():
    board = Board([frame_of(Cell(0, 0, "a")), frame_of(Cell(0, 0, "b"))], "two frames")
    bundle, metadata = board._repr_mimebundle_()
    assert set(bundle) == {"text/plain", VEGA, "image/png"} and bundle["text/plain"] == repr(board) == "two frames"
    assert bundle[VEGA]["description"] == metadata["image/png"]["alt"] == "two frames"
    assert bundle["image/png"].startswith(b"\x89PNG") and WIDTH < metadata["image/png"]["width"] < WIDTH + 20


def signals_of(board: Board) -> dict[str, dict]:
    return {signal["name"]: signal for signal in board.spec["signals"]}


def buttons_of(board: Board) -> list[str]:
    return [mark["name"] for mark in board.spec["marks"] if "name" in mark]


def test_a_slider_goes_over_the_frames_and_a_single_frame_has_none():
    board = Board([frame_of(Cell(0, 0))] * 4, "", label="token")
    signals = signals_of(board)
    assert signals["step"]["bind"] == {"input": "range", "min": 0, "max": 3, "step": 1, "name": "token 0 to 3: "}
    assert signals["step"]["value"] == 0 and buttons_of(board) == ["play", "back", "forward"]
    telling = Board([frame_of(Cell(0, 0))] * 4, "", shown=2)
    assert signals_of(telling)["step"]["value"] == 2
    single = Board([frame_of(Cell(0, 0))], "")
    assert not any({"bind", "on"} & signal.keys() for signal in single.spec["signals"]) and buttons_of(single) == []
    assert single.spec["height"] == single.height < board.spec["height"]


def test_choices_stand_one_after_the_other_and_what_they_share_is_kept_once():
    frames = {"few": [frame_of(Cell(0, 0, "x"), Cell(0, 1, "all"))], "many": [frame_of(Cell(0, 0, t)) for t in "xyz"]}
    board = Board(frames, "", choice_label="budget")
    bind = signals_of(board)["choice"]["bind"]
    assert bind == {"input": "radio", "options": ["few", "many"], "name": "budget: "}
    assert signals_of(board)["step"]["bind"]["max"] == 2 and board.lengths == {"few": 1, "many": 3}
    runs = [(row["text"], row["first"], row["last"]) for row in rows_of(board, "texts")]
    assert runs == [("x", "0", "1"), ("all", "0", "0"), ("y", "2", "2"), ("z", "3", "3")]
    assert board.texts(0) == ["x", "all"] and board.texts(2, "many") == ["z"]


def test_many_choices_are_a_list():
    board = Board({name: [frame_of(Cell(0, 0, name))] for name in "abcde"}, "")
    assert signals_of(board)["choice"]["bind"]["input"] == "select" and buttons_of(board) == []


def test_the_picture_of_choices_is_of_the_first_one():
    colours = {"red": "#FF0000", "blue": "#0000FF"}
    frames = {name: [frame_of(Cell(0, 0, colour=one, strength=1, outline="none"))] for name, one in colours.items()}
    found = Image.open(io.BytesIO(Board(frames, "").png)).convert("RGB").getcolors(1000)
    assert (255, 0, 0) in {colour for _, colour in found} and (0, 0, 255) not in {colour for _, colour in found}


def test_it_compiles_with_and_without_controls():
    one = [frame_of(Cell(0, 0))]
    for frames in (one, one * 3, {"it's": one * 2, "b": one}):
        assert "<svg" in vl_convert.vega_to_svg(Board(frames, "").spec)


def test_what_stays_is_kept_once_and_what_changes_with_its_frames():
    frames = [frame_of(Cell(0, 0, text), Cell(0, 1, "stays", width=2)) for text in "abba"]
    board = Board(frames, "")
    runs = [(row["text"], row["first"], row["last"]) for row in rows_of(board, "texts")]
    assert runs == [("a", "0", "0"), ("a", "3", "3"), ("stays", "0", "3"), ("b", "1", "2")]
    assert [board.texts(n) for n in range(4)] == [["a", "stays"], ["stays", "b"], ["stays", "b"], ["a", "stays"]]


def test_the_picture_is_of_the_frame_that_is_named_or_the_last():
    frames = [frame_of(Cell(0, 0, colour=colour, strength=1, outline="none")) for colour in ("#FF0000", "#0000FF")]
    for shown, colour in ((0, (255, 0, 0)), (None, (0, 0, 255))):
        picture = Image.open(io.BytesIO(Board(frames, "", shown=shown).png)).convert("RGB")
        assert colour in {found for _, found in picture.getcolors(1000)}


def test_ink_is_the_themes_in_the_page_and_dark_on_paper():
    board = Board([frame_of(Cell(0, 0, "a", outline=INK))], "")
    assert json.dumps(board.spec).count(INK) == 2
    picture = Image.open(io.BytesIO(board.png)).convert("L")
    assert picture.getpixel((0, 0)) == 255 and picture.getextrema()[0] < 60


def test_panels_lie_side_by_side_while_there_is_room():
    narrow, wide = Panel([Cell(0, 0, "a", width=10)]), Panel([Cell(0, 0, "a", width=25)])
    for other, places in ((narrow, [(0, 0), (306, 0)]), (wide, [(0, 0), (0, 37)])):
        boxes = rows_of(Board([Frame([narrow, other])], ""), "rects")
        assert [(float(box["x"]), float(box["y"])) for box in boxes] == places


def test_every_part_of_a_cell_is_drawn():
    cell = Cell(1, 2, "text", colour=1, note="note", outline="#123456", dashed=True, filled=0.25, tooltip="tip")
    board = Board([frame_of(cell, Cell(0, 0, hatched=True), rows="ab", columns="xyz", ticks={0: "0"}, unit="u")], "")
    fill, box = (row for row in rows_of(board, "rects") if float(row["y"]) > 30)
    assert float(fill["width"]) == pytest.approx(float(box["width"]) / 4, abs=0.1) and fill["fill"] == "#E69F00"
    assert (box["stroke"], box["dash"], box["tooltip"]) == ("#123456", "4", "tip")
    assert board.texts(0) == ["a", "b", "x", "y", "z", "0", "u", "text", "note"]
    assert len(rows_of(board, "paths")) == 1  # the hatching


def test_an_arrow_has_a_head():
    lines = [Line((0, 0), (1, 1)), Line((0, 0), (1, 1), colour=0, arrow=True)]
    assert len(rows_of(Board([frame_of(Cell(0, 0), lines=lines)], ""), "paths")) == 3


def test_a_legend_lies_below_the_tallest_frame():
    frames = [frame_of(Cell(row, 0)) for row in (0, 5)]
    board = Board(frames, "", legend=[Cell(0, 0, "meaning")])
    [entry] = rows_of(board, "texts")
    assert (entry["text"], entry["first"], entry["last"]) == ("meaning", "0", "1")
    assert 6 * 24 < float(entry["y"]) < board.height and board.spec["width"] == WIDTH


def test_a_wide_panel_has_narrower_cells_and_a_number_that_does_not_fit_is_left_out():
    board = Board([frame_of(*(Cell(0, place, text) for place, text in enumerate(["2000", "words", *range(82)])))], "")
    places = [float(box["x"]) for box in rows_of(board, "rects")]
    assert places[-1] == pytest.approx(WIDTH * 83 / 84, abs=0.01) and {"2000", "words"}.isdisjoint(board.texts(0))


def test_a_long_text_is_cut():
    board = Board(
        [frame_of(Cell(0, 0, "a long text", width=2), Cell(1, 0, "a long text", width=2, outline="none"))], ""
    )
    assert board.texts(0) == ["a long …", "a long text"]


def test_a_panel_has_room_for_its_largest_frame():
    frames = [Frame([Panel([Cell(0, 0, width=width)]), Panel([Cell(0, 0, "b")])]) for width in (1, 9)]
    [label] = rows_of(Board(frames, ""), "texts")
    assert (label["first"], label["last"]) == ("0", "1"), "it does not move"


def test_cells_that_flow_follow_each_other_in_lines():
    panel = flow([Cell(0, 0, "word")] * 25)
    assert [cell.row for cell in panel.cells].count(0) == 22 and panel.cells[22].column == 0
    assert panel.cells[1].column == panel.cells[0].width


def test_what_a_unit_counts_has_ticks_unless_the_columns_have_labels():
    cells = [Cell(0, place) for place in range(20)]
    assert [*Panel(cells, unit="token").edges] == [0, 5, 10, 15, 20] and not Panel(cells).edges
    assert not Panel(cells, unit="token", columns=range(20)).edges


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
def test_what_is_no_board(frames, shown, message):
    with pytest.raises(ValueError, match=message):
        Board(frames, "", shown=shown)


LONG_TEXTS = (
    "The model hands over q, k and v of the new tokens; attention joins them with the past. Ops started: 8 as_strided, "
    "4 narrow, 4 slice, 1 unsqueeze, 2 cat, 1 scaled_dot_product_attention, 1 squeeze.",
    "The append: 48 arange, 37 permute, 37 view, 30 copy_, 29 to, 26 reshape, 24 unsqueeze, 24 index_put, 20 multiply, "
    "19 add, 12 narrow, 12 where.",
)


@pytest.mark.parametrize("text", LONG_TEXTS)
def test_a_long_text_fits_the_picture_in_a_wide_font(text):
    """Linux browsers take DejaVu Sans for sans-serif."""
    board = Board([Frame([Panel([Cell(0, 0, "a")])], says=text)], "a text")
    lines = [row["text"] for row in rows_of(board, "texts") if " " in row["text"]]
    assert " ".join(lines) == text
    wide = FontProperties(family="DejaVu Sans")
    assert all(TextPath((0, 0), line, size=13, prop=wide).get_extents().width < WIDTH for line in lines)
