"""draw_melting: the operations of a decode step, one after another, and the one function that they melt into."""

from __future__ import annotations

from typing import Any

from course.display.grid import SCHEMA
from course.display.shapes import CHAR, MONOSPACE, WIDTH
from course.display.vega import VegaPicture
from roseinfer.arguments import counted
from roseinfer.display.chart import GRID, INK
from roseinfer.display.figure import PALETTE

from .operation_times import ATTENTION, OTHER, PRODUCT, OperationTimes

TICK_MS, MELTING = 40, 0.05  # the share of the way that a tick goes
LANE, HEIGHT, AXIS, LEGEND = 34, 40, 96, 130  # pixels
BY_ONE, MELTED = "operation by operation", "one function"
KINDS = {PRODUCT: PALETTE[0], ATTENTION: PALETTE[2], OTHER: PALETTE[4]}
HOST, KERNEL = "the host, before and after", "one function"
COLOURS = {**KINDS, KERNEL: PALETTE[3], HOST: GRID}
NICE = (1, 2, 5)  # ticks of the axis are one of these times a power of ten apart
Rows = list[dict[str, Any]]


def draw_melting(before: OperationTimes, after: OperationTimes) -> VegaPicture:
    """Draw a decode step of two stages on one scale of time, as time_operations has measured them.

    The switch lets the operations of the first melt into the one operation of the second. Grey is what the host does
    around them. Raises ValueError unless the second has one operation, and both have as many sequences.
    """
    if len(after.operations) != 1:
        raise ValueError(f"after must be a step of one operation, got {len(after.operations)} of {after.stage}")
    if before.batch_size != after.batch_size:
        raise ValueError(f"before and after must have one batch size, got {before.batch_size} and {after.batch_size}")
    text = "\n".join(
        [
            f"one decode step, {counted(before.batch_size, 'sequence')}",
            *(f"{each.stage}: {counted(len(each.operations), 'operation')}" for each in (before, after)),
        ]
    )
    times = "; ".join(
        f"{each.stage} {each.step_us:,.0f} µs, {_host(each):,.0f} of them the host" for each in (before, after)
    )
    return VegaPicture(_spec(before, after, text), text, alt=f"{text}\n{times}")


def _host(times: OperationTimes) -> float:
    """Return the microseconds of a step around its replay; 0 where noise makes the separate measurements cross."""
    return max(0.0, times.step_us - times.replay_us)


def _spec(before: OperationTimes, after: OperationTimes, text: str) -> dict[str, Any]:
    longest = max(_host(each) + each.replay_us for each in (before, after))
    return {
        "$schema": SCHEMA,
        "description": text,
        "width": WIDTH,
        "height": LEGEND + 18,
        "padding": 2,
        "background": "transparent",
        "signals": _signals(),
        "data": [
            {"name": "boxes", "values": _boxes(before, after, WIDTH / longest)},
            {"name": "labels", "values": _labels(before, after)},
            {"name": "ticks", "values": _ticks(longest)},
            {"name": "legend", "values": _legend()},
        ],
        "marks": _marks(),
    }


def _signals() -> Rows:
    """Declare the signals. melted: how far the switch is, from 0 for all operations to 1 for one function."""
    bind = {"input": "radio", "options": [BY_ONE, MELTED], "name": "a step is computed "}
    target = f"run == '{MELTED}' ? min(melted + {MELTING}, 1) : max(melted - {MELTING}, 0)"
    moves = {"events": {"type": "timer", "throttle": TICK_MS}, "update": target}
    return [{"name": "run", "value": BY_ONE, "bind": bind}, {"name": "melted", "value": 0, "on": [moves]}]


def _boxes(before: OperationTimes, after: OperationTimes, scale: float) -> Rows:
    """Place each operation's box, its x and width before (0) and after (1). Gaps between operations are left empty."""
    hosts = _host(before), _host(after)
    shrink = after.replay_us / before.replay_us
    boxes: Rows = [
        {
            "x0": 0, "w0": hosts[0] * scale, "x1": 0, "w1": hosts[1] * scale, "fill": COLOURS[HOST], "fades": 0,
            "tooltip": f"{HOST}: {hosts[0]:,.0f} µs; with one function {hosts[1]:,.0f} µs",
        }
    ]  # fmt: skip
    for each in before.operations:
        name, begin, end = each
        boxes.append({
            "x0": (hosts[0] + begin) * scale, "w0": max((end - begin) * scale - 0.5, 0.5),
            "x1": (hosts[1] + begin * shrink) * scale, "w1": (end - begin) * shrink * scale,
            "fill": KINDS[each.kind], "fades": 1, "tooltip": f"{name}: {end - begin:,.0f} µs",
        })  # fmt: skip
    begins, width = hosts[1] * scale, after.replay_us * scale
    whole = {"x0": begins, "w0": width, "x1": begins, "w1": width, "fill": COLOURS[KERNEL], "fades": -1}
    return [*boxes, whole | {"tooltip": f"{KERNEL}: {after.replay_us:,.0f} µs"}]


def _labels(before: OperationTimes, after: OperationTimes) -> Rows:
    """Write the labels. fades: 1 for the step before, -1 for the one after."""
    return [
        {
            "x": 0, "y": 16, "fades": fades,
            "text": f"{each.stage}: {each.step_us:,.0f} µs a step, {_host(each):,.0f} µs of it the host, "
            f"{counted(len(each.operations), 'operation')}",
        }
        for each, fades in ((before, 1), (after, -1))
    ]  # fmt: skip


def _ticks(longest: float) -> Rows:
    """Place about six ticks of the axis, in microseconds."""
    step = next(nice * 10**power for power in range(9) for nice in NICE if nice * 10**power >= longest / 7)
    marks = range(0, int(longest) + 1, step)
    return [{"x": mark * WIDTH / longest, "text": f"{mark:,} µs" if mark else "0"} for mark in marks]


def _legend() -> Rows:
    x, rows = 0.0, []
    for label, colour in COLOURS.items():
        rows.append({"x": x, "y": LEGEND, "fill": colour, "text": label})
        x += 28 + len(label) * 11 * CHAR
    return rows


def _marks() -> Rows:
    seen = "datum.fades == 0 ? 1 : datum.fades > 0 ? 1 - melted : melted"
    read = "(datum.fades > 0) == (melted < 0.5) ? 1 : 0"
    between = {part: {"signal": f"datum.{part}0 + (datum.{part}1 - datum.{part}0) * melted"} for part in "xw"}
    box = {"x": between["x"], "width": between["w"], "y": {"value": LANE}, "height": {"value": HEIGHT}}
    box |= {"fill": {"field": "fill"}, "opacity": {"signal": seen}, "tooltip": {"field": "tooltip"}}
    x, words = {"x": {"field": "x"}}, {"text": {"field": "text"}, "fill": {"value": INK}, "font": {"value": MONOSPACE}}
    y = {"y": {"field": "y"}}
    tick = {"y": {"value": LANE + HEIGHT}, "y2": {"value": LANE + HEIGHT + 6}, "stroke": {"value": INK}}
    square = {"width": {"value": 11}, "height": {"value": 11}, "fill": {"field": "fill"}}
    return [
        _mark("rect", "boxes", box),
        _mark("text", "labels", x | y | words | {"fontSize": {"value": 12}, "opacity": {"signal": read}}),
        _mark("rule", "ticks", x | tick),
        _mark("text", "ticks", x | words | {"y": {"value": AXIS}, "fontSize": {"value": 11}}),
        _mark("rect", "legend", x | y | square),
        _mark("text", "legend", x | y | words | {"fontSize": {"value": 11}, "dx": {"value": 16}, "dy": {"value": 10}}),
    ]


def _mark(kind: str, data: str, channels: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "from": {"data": data}, "encode": {"update": channels}}
