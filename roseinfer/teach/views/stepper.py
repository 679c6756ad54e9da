"""Stepper: frames of HTML behind a slider and a play button."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

from roseinfer.display.view import View

# Drawn by the JupyterLab extension in .jupyter/labextensions: a notebook that is opened again needs no kernel for it.
STEPS = "application/vnd.roseinfer.steps+json"
OUTLINE = "1px solid rgba(128, 128, 128, 0.6)"


def faint(colour: str) -> str:
    """A palette colour half transparent, so that text keeps the theme's own colour."""
    return colour if colour == "transparent" else f"{colour}80"


class Stepper(View):
    """Frames of HTML, one at a time. The frames are in the page; without the course's JupyterLab they fold open.

    label: what the slider counts. text/plain is `facts`. Raises ValueError without a frame.
    """

    def __init__(self, frames: List[str], label: str, facts: str) -> None:
        if not frames:
            raise ValueError("frames must hold at least one frame, got none")
        self.frames = list(frames)
        self.label = label
        self.facts = facts

    def __repr__(self) -> str:
        return self.facts

    def to_html(self) -> str:
        """A <details> for each frame, the first one open."""
        folds = (
            f"<details{'' if number else ' open'}><summary>{self.label} {number}</summary>{frame}</details>"
            for number, frame in enumerate(self.frames)
        )
        return f'<div class="rose-steps">{"".join(folds)}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {**super()._repr_mimebundle_(include, exclude), STEPS: {"label": self.label}}
