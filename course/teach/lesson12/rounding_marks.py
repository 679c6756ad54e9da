"""The marks of walk_rounding: the row, its values beside 0 on their grids, and a table of all settings."""

from __future__ import annotations

from course.display.computed_picture import Channels, Spec, legend, mark, quoted, write
from course.display.shapes import EDGE, MONOSPACE
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE

KEPT, LOST = PALETTE[2], PALETTE[3]
LEFT, WIDTH = 50, 780  # pixels
ROW_TOP, ROW = 80, 70
GRID_TOP, GRID = ROW_TOP + ROW + 50, 200
TABLE_TOP, LINE = GRID_TOP + GRID + 34, 20
COLUMNS = (330, 342, 680, 830)  # of the table: the right edges of numbers, but the second, where a bar begins
BAR = 90
NEAREST = 3  # pixels between two levels that can be told apart
TITLE: Channels = {"fontSize": 13}
AT_RIGHT: Channels = {"align": quoted("right")}
DIGITS: Channels = {**AT_RIGHT, "font": quoted(MONOSPACE)}
AXIS: Channels = {**AT_RIGHT, "fontSize": 10}
ACROSS: Channels = {"x": "scale('place', datum.first)", "x2": "scale('place', datum.last + 1)"}
COLOUR = f"datum.lost ? {quoted(LOST)} : {quoted(KEPT)}"


def height_of(num_settings: int) -> float:
    return _legend_top(num_settings) + 16


def _legend_top(num_settings: int) -> float:
    return TABLE_TOP + LINE * (num_settings + 1)


def marks_of(length: int, num_settings: int) -> list[Spec]:
    """List the marks of the picture of a row of `length` values."""
    return [*_words(length), *_row(length), *_grid(length), *_table(length), *_legend(_legend_top(num_settings))]


def _words(length: int) -> list[Spec]:
    heading = f"group == {length} ? 'one scale for the whole row' : 'a scale for each ' + group + ' values'"
    counts = f"datum.stats.zeros + ' of {length} values round to 0, mean relative error ' + {_percent()}"
    step = "'. A step is the largest |x| that shares the scale / 127.'"
    return [
        write(heading, 0, 12, fontSize=13, fontWeight=quoted("bold")),
        write(f"{counts} + {step}", 0, 32, "now", **TITLE),
    ]


def _row(length: int) -> list[Spec]:
    bottom = ROW_TOP + ROW
    middle, of_group = "scale('place', datum.i + 0.5)", "scale('place', (datum.first + datum.last + 1) / 2)"
    bar: Channels = {"x": "scale('place', datum.i)", "width": max(1.0, WIDTH / length - 1)}
    shade = "datum.part % 2 ? 0.16 : 0.07"
    handle: Channels = {"size": 90, "fill": quoted(KEPT), "stroke": quoted(INK), "cursor": quoted("ns-resize")}
    said = "'outlier: ' + format(times, '.1f') + ' × the largest other one'"
    at_left = f"datum.i > {length / 2}"
    side: Channels = {"align": f"{at_left} ? 'right' : 'left'"}  # where there is room for the text
    centre: Channels = {"align": quoted("center"), "fontSize": 10.5}
    return [
        write(quoted("the row, |x| of each value (drag the outlier)"), LEFT, ROW_TOP - 12, **TITLE),
        mark("rect", "groups", **ACROSS, y=ROW_TOP, height=ROW, fill=quoted(EDGE), fillOpacity=shade),
        mark("rect", "values", **bar, y="scale('size', datum.size)", y2=bottom, fill=COLOUR),
        mark("symbol", "outlier", "handle", x=middle, y="scale('size', datum.size)", **handle),
        write(said, f"{middle} + ({at_left} ? -10 : 10)", "scale('size', datum.size) + 4", "outlier", **side),
        *_axis("size"),
        write(quoted("step"), LEFT - 6, bottom + 15, **AT_RIGHT),
        write("format(datum.step, '.3f')", of_group, bottom + 15, "groups", **centre),
    ]


def _grid(length: int) -> list[Spec]:
    """Draw a value's place before and after rounding, on the levels that its scale has."""
    middle = "scale('place', datum.i + 0.5)"
    before, after = "scale('value', datum.x)", "scale('value', datum.rounded)"
    wide = max(1.5, WIDTH / length - 1)
    near = "datum.size <= domain('value')[1]"
    dense = f"datum.apart < {NEAREST}"
    level: Channels = {**ACROSS, "y": "scale('value', datum.at)", "stroke": quoted(EDGE), "strokeOpacity": 0.5}
    tick: Channels = {"x": f"{middle} - {wide / 2}", "width": wide, "y": f"{before} - 0.75", "height": 1.5}
    return [
        write(quoted("x beside 0, and the levels that it can be rounded to"), LEFT, GRID_TOP - 12, **TITLE),
        mark("rect", "groups", **ACROSS, y=GRID_TOP, height=GRID, fill=quoted(EDGE), fillOpacity=0.2, drawn_if=dense),
        mark("rule", "lines", **level),
        mark("rule", "values", x=middle, y=before, y2=after, stroke=COLOUR, strokeOpacity=0.6, drawn_if=near),
        mark("rect", "values", **tick, fill=quoted(INK), drawn_if=near),
        mark("symbol", "values", x=middle, y=after, size=wide * 5, fill=COLOUR, drawn_if=near),
        *_axis("value"),
    ]


def _axis(scale: str) -> list[Spec]:
    ends = (f"domain('{scale}')[{end}]" for end in (0, 1))
    return [write(f"format({end}, '.1f')", LEFT - 6, f"scale('{scale}', {end}) + 4", **AXIS) for end in ends]


def _table(length: int) -> list[Spec]:
    y = f"{TABLE_TOP} + {LINE} * (datum.row + 1)"
    heads = ("values that share a scale", "round to 0", "mean relative error", "bytes per value")
    places = (LEFT, COLUMNS[0], COLUMNS[2], COLUMNS[3])
    box: Channels = {"x": LEFT - 8, "x2": COLUMNS[-1] + 6, "y": f"{y} - 14", "height": LINE - 1}
    look: Channels = {"fill": quoted("transparent"), "cursor": quoted("pointer")}
    chosen = f"datum.group == group ? {quoted(INK)} : 'transparent'"
    bar: Channels = {"x": COLUMNS[1], "width": f"{BAR} * datum.stats.zeros / {length}", "y": f"{y} - 10", "height": 11}
    return [
        *(
            write(quoted(head), place, TABLE_TOP, **({} if place == LEFT else AT_RIGHT))
            for head, place in zip(heads, places, strict=True)
        ),
        mark("rect", "settings", **bar, fill=quoted(LOST)),
        mark("rect", "settings", **{**bar, "width": BAR}, fill=quoted("transparent"), stroke=quoted(EDGE)),
        write("datum.name", LEFT, y, "settings"),
        write("datum.stats.zeros", COLUMNS[0], y, "settings", **DIGITS),
        write(_percent(), COLUMNS[2], y, "settings", **DIGITS),
        write("format(datum.bytes, '.4f')", COLUMNS[3], y, "settings", **DIGITS),
        mark("rect", "settings", "setting", **box, **look, stroke=chosen),
    ]


def _percent() -> str:
    return "format(datum.stats.error, '.1%')"


def _legend(y: float) -> list[Spec]:
    return legend(
        {
            "rounded to 0": {"fill": quoted(LOST)},
            "rounded to another level": {"fill": quoted(KEPT)},
            "x before rounding": {"fill": quoted(INK), "y": y + 5, "height": 2},
            "a level": {"fill": quoted(EDGE), "y": y + 6, "height": 1},
            "levels too near to be drawn": {"fill": quoted(EDGE), "fillOpacity": 0.3},
        },
        y,
    )
