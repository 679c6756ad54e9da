"""Grid: cells with colours, texts and outlines in panels, one frame per step, with a slider and a play button.

A Vega spec: JupyterLab and VS Code draw it without a kernel and without trust, and elsewhere it is a picture. Python
works out every place in pixels; of the frames, Vega has only to choose the shapes that the slider's value is in.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, get_type_hints

from .chart import EMBED, INK, PNG_SCALE, image_width, with_palette
from .figure import INK as DARK_INK
from .figure import PAPER
from .shapes import WIDTH, Cell, Frame, Path, Rect, Shape, Text, bottom, frame_shapes, legend_shapes

VEGA = "application/vnd.vega.v5+json"
SCHEMA = "https://vega.github.io/schema/vega/v5.json"
FRAME_MS = 700
KINDS = {"rects": Rect, "paths": Path, "texts": Text}


class Grid:
    """text: what it shows in exact facts, for nbval. label: what the slider counts. shown: the frame of the picture,
    None for the last one. legend: cells that stand for their kind, each with its meaning as text.

    Raises ValueError without a frame.
    """

    def __init__(
        self,
        frames: Sequence[Frame],
        text: str,
        label: str = "step",
        shown: int | None = None,
        legend: Sequence[Cell] = (),
    ) -> None:
        if not frames:
            raise ValueError("frames must hold at least one frame, got none")
        self.frames, self.text, self.label = list(frames), text, label
        self.shown = len(frames) - 1 if shown is None else shown
        self.shapes, height = _drawn(self.frames, legend)
        self.height = round(height)

    def __repr__(self) -> str:
        return self.text

    def texts(self, number: int) -> list[str]:
        """Texts that can be read in a frame."""
        return [shape.text for shape, first, last in self.shapes if isinstance(shape, Text) and first <= number <= last]

    @property
    def spec(self) -> dict[str, Any]:
        return self._spec(0)

    @property
    def png(self) -> bytes:
        import vl_convert

        spec = json.loads(json.dumps(self._spec(self.shown)).replace(INK, DARK_INK))
        spec |= {"background": PAPER, "padding": 8}
        return with_palette(vl_convert.vega_to_png(spec, scale=PNG_SCALE))

    def _spec(self, number: int) -> dict[str, Any]:
        return {
            "$schema": SCHEMA,
            "description": self.text,
            "width": WIDTH,
            "height": self.height,
            "padding": 2,
            "background": "transparent",
            "signals": _signals(self.label, number, len(self.frames) - 1),
            "data": [_table(name, kind, self.shapes) for name, kind in KINDS.items()],
            "marks": MARKS,
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        png = self.png
        bundle = {"text/plain": self.text, VEGA: self.spec, "image/png": png}
        embed = {"embed_options": {**EMBED["embed_options"], "actions": False}}
        return bundle, {"image/png": {"alt": self.text, "width": image_width(png)}, VEGA: embed}


def _drawn(frames: Sequence[Frame], legend: Sequence[Cell]) -> tuple[list[tuple[Shape, int, int]], float]:
    """Each shape with the first and the last frame of every run of frames that it is in, and the height of all."""
    found: dict[Shape, list[list[int]]] = {}
    drawn = [list(frame_shapes(frame)) for frame in frames]
    end = max(edge for shapes in drawn for edge in map(bottom, shapes)) + 8
    below = list(legend_shapes(legend, end))
    for number, shapes in enumerate(drawn):
        for shape in [*shapes, *below]:
            runs = found.setdefault(shape, [])
            if runs and runs[-1][1] >= number - 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
    return [(shape, first, last) for shape, runs in found.items() for first, last in runs], end + (22 if legend else 0)


def _signals(label: str, number: int, last: int) -> list[dict[str, Any]]:
    """The slider's value, and whether it is being played. A single frame has neither control."""
    step: dict[str, Any] = {"name": "step", "value": number}
    if not last:
        return [step]
    tick = {"type": "timer", "throttle": FRAME_MS}
    step["bind"] = {"input": "range", "min": 0, "max": last, "step": 1, "name": f"{label} 0 to {last}: "}
    step["on"] = [
        {"events": {"signal": "play"}, "update": f"play && step >= {last} ? 0 : step"},
        {"events": tick, "update": f"play ? min(step + 1, {last}) : step"},
    ]
    play = {"name": "play", "value": False, "bind": {"input": "checkbox", "name": "play "}}
    return [play | {"on": [{"events": tick, "update": f"play && step < {last}"}]}, step]


def _table(name: str, kind: type[Shape], shapes: Sequence[tuple[Shape, int, int]]) -> dict[str, Any]:
    """The shapes of a kind as CSV, one line of a recorded notebook; those of the slider's frame are left."""
    names = (*kind._fields, "first", "last")
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(names)
    for shape, first, last in shapes:
        if isinstance(shape, kind):
            writer.writerow([f"{v:.5g}" if isinstance(v, float) else v for v in (*shape, first, last)])
    hints = get_type_hints(kind)
    parse = {name: "string" if hints.get(name) is str else "number" for name in names}
    now = {"type": "filter", "expr": "datum.first <= step && step <= datum.last"}
    values = lines.getvalue()
    return {"name": name, "values": values, "format": {"type": "csv", "parse": parse}, "transform": [now]}


def _mark(kind: str, data: str, **encoding: str) -> dict[str, Any]:
    channels = {channel: {"field": field} for channel, field in encoding.items()}
    dashed = {"strokeDash": {"signal": "datum.dash ? [datum.dash, 3] : []"}} if data != "texts" else {}
    return {"type": kind, "from": {"data": data}, "encode": {"update": channels | dashed}}


PLACE = {"x": "x", "y": "y"}
BOX = {"fill": "fill", "fillOpacity": "strength", "stroke": "stroke", "strokeWidth": "thick", "tooltip": "tooltip"}
MARKS = [
    _mark("rect", "rects", **PLACE, width="width", height="height", **BOX),
    _mark("path", "paths", path="path", stroke="stroke", strokeOpacity="strength"),
    _mark("text", "texts", **PLACE, text="text", fontSize="size", fontWeight="weight", align="align", font="font"),
]
MARKS[0]["encode"]["update"]["cornerRadius"] = {"value": 2}
MARKS[1]["encode"]["update"]["strokeWidth"] = {"value": 1.2}
MARKS[2]["encode"]["update"]["fill"] = {"value": INK}
