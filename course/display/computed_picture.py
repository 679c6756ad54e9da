"""ComputedPicture: a VegaPicture whose numbers the page itself computes, and short ways to write its marks.

Where frames are enough, use display.grid. Here a reader changes a number, by a control or by dragging a mark, and
Vega's expressions compute the others: no kernel is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from roseinfer.display.chart import INK, PNG_SCALE, with_palette
from roseinfer.display.figure import INK as DARK_INK
from roseinfer.display.figure import PAPER

from .grid import SCHEMA
from .grid_controls import HEIGHT, control_marks, control_signals
from .shapes import EDGE, WIDTH
from .vega import VegaPicture

Spec = dict[str, Any]
Channels = dict[str, Any]  # of a mark: an expression, or a number
LETTERS: Channels = {"font": '"sans-serif"', "fontSize": 12, "fill": json.dumps(INK)}


class ComputedPicture(VegaPicture):
    """A VegaPicture whose numbers the page itself computes.

    steps: the signal `step` goes from 0 to it, by a slider, play, back and forward; 0 for no such signal. still: values
    that signals have in the picture, where they differ from those that the page begins with.
    """

    def __init__(
        self,
        text: str,
        height: float,
        signals: Sequence[Spec],
        marks: Sequence[Spec],
        data: Sequence[Spec] = (),
        scales: Sequence[Spec] = (),
        steps: int = 0,
        still: Mapping[str, Any] | None = None,
    ) -> None:
        lengths = {"": steps + 1}
        self.drawing: Spec = {  # without the marks that control it
            "$schema": SCHEMA,
            "description": text,
            "width": WIDTH,
            "height": height,
            "padding": 2,
            "background": "transparent",
            "signals": [*(control_signals("step", lengths, "", 0) if steps else []), *signals],
            "data": list(data),
            "scales": list(scales),
            "marks": list(marks),
        }
        controls = control_marks("step", lengths, height + 4)
        page = {"height": height + HEIGHT * bool(controls), "marks": [*marks, *controls]}
        super().__init__(self.drawing | page, text, still=still)

    def with_values(self, **values: Any) -> Spec:
        """Return the spec of the still, on paper, with these values of signals."""
        signals = [one | {"value": values.get(one["name"], one.get("value"))} for one in self.drawing["signals"]]
        spec: Spec = json.loads(json.dumps(self.drawing | {"signals": signals}).replace(INK, DARK_INK))
        return spec | {"background": PAPER, "padding": 8}

    @property
    def png(self) -> bytes:
        import vl_convert

        return with_palette(vl_convert.vega_to_png(self.with_values(**self.still), scale=PNG_SCALE))

    def texts(self, **values: Any) -> list[str]:
        """Return the texts that can be read when signals have these values: the page's own numbers."""
        import xml.etree.ElementTree as ElementTree

        import vl_convert

        drawing = ElementTree.fromstring(vl_convert.vega_to_svg(self.with_values(**values)))
        return ["".join(one.itertext()) for one in drawing.iter("{http://www.w3.org/2000/svg}text")]


def mark(kind: str, data: str = "", name: str = "", drawn_if: str = "", **channels: Any) -> Spec:
    """Make a Vega mark. A string channel is an expression. drawn_if: an expression, for marks that come and go."""
    if drawn_if:
        channels["opacity"] = f"({drawn_if}) ? ({channels.get('opacity', 1)}) : 0"
    update = {channel: {"signal" if isinstance(to, str) else "value": to} for channel, to in channels.items()}
    source = {"from": {"data": data}} if data else {}
    names = {"name": name} if name else {"interactive": False}
    return {"type": kind, **source, **names, "encode": {"update": update}}


def write(text: str, x: str | float, y: str | float, data: str = "", **channels: Any) -> Spec:
    """Make a text mark. text: an expression."""
    return mark("text", data, text=text, x=x, y=y, **{**LETTERS, **channels})


def legend(entries: Mapping[str, Channels], y: float) -> list[Spec]:
    """Make a line of boxes, each with its meaning. entries: from a meaning to the channels of its box."""
    marks, x = [], 0.0
    for meaning, look in entries.items():
        marks += [
            mark("rect", **{"x": x, "y": y, "width": 14, "height": 12, **look}),
            write(json.dumps(meaning), x + 20, y + 10.5, fontSize=11.5),
        ]
        x += 20 + 6.3 * len(meaning) + 16
    return marks


def quoted(text: str) -> str:
    """Quote a text as an expression."""
    return json.dumps(text)


OUTLINE: Channels = {"fill": quoted("transparent"), "stroke": quoted(EDGE), "strokeDash": "[4, 3]"}
