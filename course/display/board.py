"""Board: coloured cells in panels, one frame per step, with a slider and play, back and forward.

Every picture of the course that is no chart is a Board. A picture lists the cells of its panels by row and column; the
board finds their sizes and places, and wraps panels and texts:

    cells = [Cell(row, token, token, colour=row) for row, n in enumerate(lengths) for token in range(n)]
    Board([Frame([Panel(cells, "a batch", rows=labels, unit="token")])], text)

`table` makes a panel of texts in columns, and `flow` one of cells that follow each other like words.

A Vega spec: JupyterLab and VS Code draw it without a kernel and without trust, and elsewhere it is a picture. Python
computes every place in pixels; Vega only has to choose the shapes of the frame that the slider shows.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from roseinfer.display.chart import EMBED, INK, PNG_SCALE, image_width, with_palette
from roseinfer.display.figure import INK as DARK_INK
from roseinfer.display.figure import PAPER

from .board_controls import FRAME_MS, HEIGHT, control_marks, control_signals
from .board_layout import Path, Rect, Shape, Text, bottom, frame_shapes, legend_shapes
from .cells import CHAR, EDGE, MONOSPACE, WIDTH, Cell, Frame, Line, Panel, edge_ticks, flow, table, with_room

__all__ = [
    "CHAR",
    "EDGE",
    "MONOSPACE",
    "VEGA",
    "WIDTH",
    "Board",
    "Cell",
    "Frame",
    "Line",
    "Panel",
    "edge_ticks",
    "flow",
    "table",
]

VEGA = "application/vnd.vega.v5+json"
SCHEMA = "https://vega.github.io/schema/vega/v5.json"
KINDS = {"rects": Rect, "paths": Path, "texts": Text}


class Board:
    """Cells in panels, one frame per step, with a slider, play, back and forward.

    Args:
        frames: one per step, or the frames of several choices by name, of which the first is shown first. A choice with
            fewer frames than the others stays at its last one.
        text: what it shows in exact facts, for nbval.
        label: what the slider counts.
        shown: the telling frame, which the slider shows first and the picture shows always, of the first choice. None:
            the slider begins with the first frame, and the picture has the last one.
        legend: cells that stand for their kind, each with its meaning as text.
        choice_label: what the choices are.
        frame_ms: how long a frame is shown while it plays.
        alt: a description that includes times; the text if empty.

    Raises ValueError without a frame, and for a `shown` that is no frame.
    """

    def __init__(
        self,
        frames: Sequence[Frame] | Mapping[str, Sequence[Frame]],
        text: str,
        label: str = "step",
        shown: int | None = None,
        legend: Sequence[Cell] = (),
        choice_label: str = "run",
        frame_ms: int = FRAME_MS,
        alt: str = "",
    ) -> None:
        choices = frames if isinstance(frames, Mapping) else {"": frames}
        if not choices:
            raise ValueError("frames must hold at least one choice, got none")
        for name, own in choices.items():
            if not own:
                raise ValueError(f"frames{f' of {name!r}' if name else ''} must hold at least one frame, got none")
        self.lengths = {name: len(own) for name, own in choices.items()}
        first = next(iter(self.lengths.values()))
        if shown is not None and not 0 <= shown < first:
            raise ValueError(f"shown must be a frame of the first choice, 0 to {first - 1}, got {shown}")
        self.first, self.shown = (0, first - 1) if shown is None else (shown, shown)
        self.text, self.alt = text, alt or text
        self.label, self.choice_label, self.frame_ms = label, choice_label, frame_ms
        self.frames = with_room([frame for own in choices.values() for frame in own])
        self.shapes, height = _drawn(self.frames, legend)
        self.height = round(height)

    def __repr__(self) -> str:
        return self.text

    def texts(self, number: int, choice: str | None = None) -> list[str]:
        """Return the texts that can be read in a frame. choice: its name, None for the first one."""
        names = list(self.lengths)
        at = number + sum(self.lengths[name] for name in names[: names.index(choice or names[0])])
        return [shape.text for shape, first, last in self.shapes if isinstance(shape, Text) and first <= at <= last]

    @property
    def spec(self) -> dict[str, Any]:
        spec = self._spec(self.first)
        controls = control_marks(self.label, self.lengths, self.height + 4)
        if controls:
            spec["height"] += HEIGHT
        return spec | {"marks": MARKS + controls}

    @property
    def png(self) -> bytes:
        """Picture of one frame, without controls."""
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
            "signals": control_signals(self.label, self.lengths, self.choice_label, number, self.frame_ms),
            "data": [_table(name, kind, self.shapes) for name, kind in KINDS.items()],
            "marks": MARKS,
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        png = self.png
        bundle = {"text/plain": self.text, VEGA: self.spec, "image/png": png}
        embed = {"embed_options": {**EMBED["embed_options"], "actions": False}}
        return bundle, {"image/png": {"alt": self.alt, "width": image_width(png)}, VEGA: embed}


def _drawn(frames: Sequence[Frame], legend: Sequence[Cell]) -> tuple[list[tuple[Shape, int, int]], float]:
    """List each shape with the first and last frame of every run of frames that has it; return the height, too."""
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


def _table(name: str, kind: type[Shape], shapes: Sequence[tuple[Shape, int, int]]) -> dict[str, Any]:
    """Write the shapes of a kind as CSV, which is one line of a recorded notebook; Vega keeps those of the frame."""
    names = (*kind._fields, "first", "last")
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(names)
    for shape, first, last in shapes:
        if isinstance(shape, kind):
            writer.writerow([f"{v:.5g}" if isinstance(v, float) else v for v in (*shape, first, last)])
    hints = get_type_hints(kind)
    parse = {name: "string" if hints.get(name) is str else "number" for name in names}
    now = {"type": "filter", "expr": "datum.first <= frame && frame <= datum.last"}
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
    _mark("text", "texts", **PLACE, text="text", fontSize="size", fontWeight="weight", align="align"),
]
MARKS[0]["encode"]["update"]["cornerRadius"] = {"value": 2}
MARKS[1]["encode"]["update"]["strokeWidth"] = {"value": 1.2}
MARKS[2]["encode"]["update"]["fill"] = {"value": INK}
MARKS[2]["encode"]["update"]["font"] = {"signal": f"datum.font || '{MONOSPACE}'"}
