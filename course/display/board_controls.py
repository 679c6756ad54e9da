"""Controls of a Board in Vega: a slider, a choice among settings, and marks below the cells for play, back and forward.

Play, back and forward are clicked, because JupyterLab's command mode takes the arrow keys from a slider.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from roseinfer.display.chart import INK

FRAME_MS = 700
HEIGHT = 30  # pixels below the cells
BUTTON, PITCH = 24, 28
MOST_RADIOS = 4  # more choices than these become a list to select from
PLAY, PAUSE = "M7 5L19 12L7 19Z", "M7 5H11V19H7ZM14 5H18V19H14Z"
BACK, FORWARD = "M17 5L9 12L17 19ZM6 5H8V19H6Z", "M7 5L15 12L7 19ZM16 5H18V19H16Z"
HOVERED = "rgba(128, 128, 128, 0.25)"


def control_signals(
    label: str, lengths: Mapping[str, int], choice_label: str, number: int, frame_ms: int
) -> list[dict[str, Any]]:
    """Make the signals of the controls. `frame` is the one that is drawn, counted over the frames of all choices.

    lengths: the number of frames of each choice. number: the slider's first value. A single choice has no control, and
    neither has a single frame.
    """
    longest = max(lengths.values()) - 1
    end, first = str(longest), "0"
    signals: list[dict[str, Any]] = []
    if len(lengths) > 1:
        names, starts = list(lengths), list(accumulate(lengths.values(), initial=0))[:-1]
        control = "radio" if len(names) <= MOST_RADIOS else "select"
        bind = {"input": control, "options": names, "name": f"{choice_label}: "}
        signals = [
            {"name": "choice", "value": names[0], "bind": bind},
            {"name": "place", "update": f"indexof({json.dumps(names)}, choice)"},
            {"name": "end", "update": f"{[n - 1 for n in lengths.values()]}[place]"},
        ]
        end, first = "end", f"{starts}[place]"
    step: dict[str, Any] = {"name": "step", "value": number}
    if longest:
        signals.append(_play(end, frame_ms))
        step |= {"bind": _slider(label, longest), "on": _moves(end, frame_ms)}
    return [*signals, step, {"name": "frame", "update": f"{first} + min(step, {end})"}]


def _play(end: str, frame_ms: int) -> dict[str, Any]:
    on = [
        {"events": "@play:click", "update": "!play"},
        {"events": "@back:click, @forward:click", "update": "false"},
        {"events": {"type": "timer", "throttle": frame_ms}, "update": f"play && step < {end}"},
    ]
    return {"name": "play", "value": False, "on": on}


def _slider(label: str, longest: int) -> dict[str, Any]:
    return {"input": "range", "min": 0, "max": longest, "step": 1, "name": f"{label} 0 to {longest}: "}


def _moves(end: str, frame_ms: int) -> list[dict[str, Any]]:
    """Make the slider's moves: play begins again from the end, and back leaves the end of a shorter choice."""
    return [
        {"events": {"signal": "play"}, "update": f"play && step >= {end} ? 0 : step"},
        {"events": {"type": "timer", "throttle": frame_ms}, "update": f"play ? min(step + 1, {end}) : step"},
        {"events": "@back:click", "update": f"max(min(step, {end}) - 1, 0)"},
        {"events": "@forward:click", "update": f"min(step + 1, {end})"},
    ]


def control_marks(label: str, lengths: Mapping[str, int], top: float) -> list[dict[str, Any]]:
    """Make marks for play, back and forward, and the step's number; [] for single frames."""
    if max(lengths.values()) == 1:
        return []
    end = "end" if len(lengths) > 1 else str(max(lengths.values()) - 1)
    drawn = {
        "play": {"signal": f"play ? '{PAUSE}' : '{PLAY}'"},
        "back": {"value": BACK},
        "forward": {"value": FORWARD},
    }
    marks = []
    for place, (name, path) in enumerate(drawn.items()):
        at = {"x": {"value": place * PITCH}, "y": {"value": top}}
        marks += [_button(name, at), {"type": "path", "interactive": False, "encode": {"update": at | _ink(path)}}]
    says = {"text": {"signal": f"'{label} ' + min(step, {end}) + ' of ' + {end}"}, "fill": {"value": INK}}
    at = {"x": {"value": len(drawn) * PITCH + 6}, "y": {"value": top + 16}, "fontSize": {"value": 12}}
    return [*marks, {"type": "text", "encode": {"update": at | says}}]


def _ink(path: dict[str, Any]) -> dict[str, Any]:
    return {"path": path, "fill": {"value": INK}}


def _button(name: str, at: dict[str, Any]) -> dict[str, Any]:
    """Make the part that is clicked, larger than its sign. A tooltip would lie over the controls below."""
    size = {"width": {"value": BUTTON}, "height": {"value": BUTTON}, "cornerRadius": {"value": 3}}
    look = {"fill": {"value": "transparent"}, "stroke": {"value": "#808080"}, "cursor": {"value": "pointer"}}
    said = {"signal": "play ? 'stop' : 'play'"} if name == "play" else {"value": name}
    role = {"ariaRole": {"value": "button"}, "description": said}
    return {
        "type": "rect",
        "name": name,
        "encode": {"enter": size, "update": at | look | role, "hover": {"fill": {"value": HOVERED}}},
    }
