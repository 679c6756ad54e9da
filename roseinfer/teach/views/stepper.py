"""Stepper: frames of HTML behind a slider and a play button."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

import ipywidgets

PLAY_MS = 700  # a frame
OUTLINE = "1px solid rgba(128, 128, 128, 0.6)"


def faint(colour: str) -> str:
    """A palette colour half transparent, so that text keeps the theme's own colour."""
    return colour if colour == "transparent" else f"{colour}80"


class Stepper(ipywidgets.VBox):
    """Shows frames[slider.value]. text/plain is `facts`, whole; ipywidgets alone would cut it at 110 characters."""

    def __init__(self, frames: List[str], label: str, facts: str) -> None:
        if not frames:
            raise ValueError("frames must hold at least one frame, got none")
        self.frames = list(frames)
        self.facts = facts
        last = len(frames) - 1
        self.slider = ipywidgets.IntSlider(0, 0, last, description=label, style={"description_width": "auto"})
        self.slider.layout.width = "32em"
        self.view = ipywidgets.HTML(self.frames[0])
        self.slider.observe(self._show, names="value")
        play = ipywidgets.Play(min=0, max=last, interval=PLAY_MS)
        ipywidgets.jslink((play, "value"), (self.slider, "value"))
        super().__init__([ipywidgets.HBox([play, self.slider]), self.view])

    def __repr__(self) -> str:
        return self.facts

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        return {**super()._repr_mimebundle_(**options), "text/plain": repr(self)}

    def _show(self, change: dict[str, Any]) -> None:
        self.view.value = self.frames[change["new"]]
