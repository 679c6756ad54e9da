"""walk_launches: the host's operations above the device's work in a decode step; a switch merges them into a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.display.grid import SCHEMA
from course.display.shapes import CHAR, EDGE, MONOSPACE, WIDTH
from course.display.vega import VegaPicture
from roseinfer.arguments import counted
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model
from roseinfer.stage import Stage

from .step_operations import Operation, decode_operations, graph_operations

TICK_MS, MERGING = 40, 0.08  # the share of the way that a tick goes at a time
LABELS, HOST, DEVICE, HEIGHT, LEGEND = 64, 30, 92, 30, 158  # pixels
LAUNCH = 64  # pixels: the width of a graph's one launch
BY_ONE, GRAPH = "launch by launch", "as a graph"
KINDS = {
    "matrix product": (PALETTE[0], ("linear", "mm", "matmul")),
    "attention": (PALETTE[2], ("attention",)),
    "other computing": (PALETTE[4], ("",)),
}
VIEW = "view: the host makes it, the device has nothing to do"
Rows = list[dict[str, Any]]


def walk_launches(eager: type[Stage], graphs: type[Stage], model: Model, batch_size: int = 4) -> VegaPicture:
    """Show one decode step of two stages: each operation that the host starts, and below it what the device computes.

    One tick per operation, in their order; no times. The switch shows the step of `graphs`: one launch for all that
    its graph holds. Recorded on the CPU, where a graph's operations can be read.
    Raises ValueError for a model elsewhere, for a stage without graphs, and for a graph that computes something else.
    """
    if model.device.type != "cpu":
        raise ValueError(f"model must be on the CPU, where a graph's operations can be read, got {model.device}")
    operations = decode_operations(eager, model, batch_size)
    held, outside = graph_operations(graphs, model, batch_size)
    views = {each.name for each in operations if each.is_view}
    computed = [each.name for each in operations if not each.is_view]
    if computed != [name for name in held if name not in views] or any(not each.is_view for each in outside):
        raise ValueError(f"graphs must be a stage whose graph computes what {eager.name} does, got {graphs.name}")
    facts = {
        BY_ONE: f"{eager.name}: the host starts {len(operations)} operations, {len(computed)} of them compute",
        GRAPH: f"{graphs.name}: 1 launch of a graph with {len(held)} operations, {len(outside)} views around it",
    }
    text = "\n".join([f"one decode step, {counted(batch_size, 'sequence')}", *facts.values()])
    return VegaPicture(_spec(operations, outside, facts, text), text)


def kind_of(name: str) -> str:
    """Name the kind of an operation that computes."""
    return next(kind for kind, (_, parts) in KINDS.items() if any(part in name for part in parts))


def _spec(
    operations: Sequence[Operation], outside: Sequence[Operation], facts: dict[str, str], text: str
) -> dict[str, Any]:
    pitch = (WIDTH - LABELS) / max(len(operations), len(outside) + LAUNCH / 8)
    host, device = _places(operations, outside, pitch)
    return {
        "$schema": SCHEMA,
        "description": text,
        "width": WIDTH,
        "height": LEGEND + 18,
        "padding": 2,
        "background": "transparent",
        "signals": _signals(),
        "data": [
            {"name": "boxes", "values": [*host, *device]},
            {"name": "labels", "values": _labels(facts)},
            {"name": "legend", "values": _legend()},
        ],
        "marks": _marks(),
    }


def _signals() -> Rows:
    """Declare the signals. merged: how far the ticks have moved, 0 for launch by launch, 1 for a graph."""
    bind = {"input": "radio", "options": [BY_ONE, GRAPH], "name": "a step runs "}
    target = f"run == '{GRAPH}' ? min(merged + {MERGING}, 1) : max(merged - {MERGING}, 0)"
    moves = {"events": {"type": "timer", "throttle": TICK_MS}, "update": target}
    return [{"name": "run", "value": BY_ONE, "bind": bind}, {"name": "merged", "value": 0, "on": [moves]}]


def _places(operations: Sequence[Operation], outside: Sequence[Operation], pitch: float) -> tuple[Rows, Rows]:
    """Place the boxes of host and device, each with its x and width launch by launch (0) and as a graph (1)."""
    first = next(number for number, each in enumerate(operations) if not each.is_view)
    before = min(first, len(outside))
    launch, width = LABELS + before * pitch, max(1.0, pitch - 2)
    after = launch + LAUNCH + 4
    host: Rows = []
    device: Rows = []
    for number, (name, is_view) in enumerate(operations):
        x = LABELS + number * pitch
        stays = number < before
        place = {"x0": x, "w0": width, "x1": x if stays else launch, "w1": width if stays else LAUNCH}
        look = {"fill": EDGE, "strength": 0.35} if is_view else {"fill": KINDS[kind_of(name)][0], "strength": 0.75}
        tick = place | look | {"y": HOST + 14 * is_view, "height": HEIGHT - 14 * is_view, "tooltip": name}
        host.append(tick | {"fades": 0 if stays else 1})
        if not is_view:
            begins = launch + LAUNCH + len(device) * (width + 1)
            bar = {"x0": x + pitch, "w0": width, "x1": begins, "w1": width, "fades": 0}
            device.append(bar | look | {"y": DEVICE, "height": HEIGHT, "tooltip": name})
    for number, (name, _) in enumerate(outside[before:]):
        x = after + number * pitch
        box: dict[str, Any] = {"x0": x, "w0": width, "x1": x, "w1": width, "fades": -1}
        box |= {"fill": EDGE, "strength": 0.35}
        host.append(box | {"y": HOST + 14, "height": HEIGHT - 14, "tooltip": name})
    one: dict[str, Any] = {
        "x0": launch,
        "w0": LAUNCH,
        "x1": launch,
        "w1": LAUNCH,
        "fades": -1,
        "fill": PALETTE[3],
        "strength": 0.75,
    }
    host.append(one | {"y": HOST, "height": HEIGHT, "tooltip": "one launch of the graph"})
    return host, device


def _labels(facts: dict[str, str]) -> Rows:
    """Write the labels. fades: 1 for a text that is shown launch by launch alone, -1 as a graph alone, 0 for both."""
    return [
        {"x": 0, "y": 14, "text": facts[BY_ONE], "fades": 1},
        {"x": 0, "y": 14, "text": facts[GRAPH], "fades": -1},
        {"x": 0, "y": HOST + 19, "text": "host", "fades": 0},
        {"x": 0, "y": DEVICE + 19, "text": "device", "fades": 0},
        {
            "x": LABELS,
            "y": DEVICE + HEIGHT + 18,
            "text": "one tick per operation, in order; no times. A CUDA graph is one launch.",
            "fades": 0,
        },
    ]


def _legend() -> Rows:
    entries = {kind: colour for kind, (colour, _) in KINDS.items()}
    x, rows = 0.0, []
    for label, colour in {**entries, "launch of a graph": PALETTE[3], VIEW: EDGE}.items():
        rows.append({"x": x, "y": LEGEND, "fill": colour, "text": label, "strength": 0.35 if label == VIEW else 0.75})
        x += 28 + len(label) * 11 * CHAR
    return rows


def _marks() -> Rows:
    seen = "datum.fades == 0 ? 1 : datum.fades > 0 ? 1 - merged : merged"
    read = "datum.fades == 0 ? 1 : (datum.fades > 0) == (merged < 0.5) ? 1 : 0"
    between = {part: {"signal": f"datum.{part}0 + (datum.{part}1 - datum.{part}0) * merged"} for part in "xw"}
    tick = {"x": between["x"], "width": between["w"], "tooltip": {"field": "tooltip"}, "opacity": {"signal": seen}}
    tick |= {channel: {"field": channel} for channel in ("y", "height", "fill")} | {
        "fillOpacity": {"field": "strength"}
    }
    place = {"x": {"field": "x"}, "y": {"field": "y"}}
    words = {"text": {"field": "text"}, "fill": {"value": INK}, "font": {"value": MONOSPACE}}
    square = {"width": {"value": 11}, "height": {"value": 11}, "fill": {"field": "fill"}}
    return [
        _mark("rect", "boxes", tick),
        _mark("text", "labels", place | words | {"fontSize": {"value": 12}, "opacity": {"signal": read}}),
        _mark("rect", "legend", place | square | {"fillOpacity": {"field": "strength"}}),
        _mark("text", "legend", place | words | {"fontSize": {"value": 11}, "dx": {"value": 16}, "dy": {"value": 10}}),
    ]


def _mark(kind: str, data: str, channels: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "from": {"data": data}, "encode": {"update": channels}}
