"""VegaPicture: a Vega spec with its text, and a still for pages without JavaScript."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from roseinfer.display.chart import EMBED, INK, PNG_SCALE, image_width, with_palette
from roseinfer.display.figure import INK as DARK_INK
from roseinfer.display.figure import PAPER

from .grid import VEGA


class VegaPicture:
    """A Vega spec with its text, and a still picture.

    text: what it shows in exact facts, for nbval. alt: a description that includes times; the text if empty. still:
    values of signals in the picture, where they differ from those in the page.
    """

    def __init__(self, spec: dict[str, Any], text: str, alt: str = "", still: Mapping[str, Any] | None = None) -> None:
        self.spec, self.text, self.alt, self.still = spec, text, alt or text, dict(still or {})

    def __repr__(self) -> str:
        return self.text

    @property
    def png(self) -> bytes:
        import vl_convert

        spec = json.loads(json.dumps(self.spec).replace(INK, DARK_INK)) | {"background": PAPER, "padding": 8}
        for signal in spec["signals"]:
            if signal["name"] in self.still:
                signal["value"] = self.still[signal["name"]]
        return with_palette(vl_convert.vega_to_png(spec, scale=PNG_SCALE))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        png = self.png
        bundle = {"text/plain": self.text, VEGA: self.spec, "image/png": png}
        embed = {"embed_options": {**EMBED["embed_options"], "actions": False}}
        return bundle, {"image/png": {"alt": self.alt, "width": image_width(png)}, VEGA: embed}
