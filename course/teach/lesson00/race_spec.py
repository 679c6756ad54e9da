"""race_spec: the Vega spec of a text race. Python places everything; Vega shows the texts that are written by now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from course.display.grid import SCHEMA
from course.display.shapes import CHAR, EDGE, MONOSPACE, WIDTH
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE

PLAY_MS, TICK_MS = 8000, 50  # about as long as the slowest plays; between two pictures
SIZE, LINE, PAD, GAP = 12, 19, 10, 16  # pixels
LANE = (WIDTH - GAP) // 2
TITLE, METERS, METER, LABELS = 26, 84, 14, 14
PROMPT, DECODE, COPIED = PALETTE[1], PALETTE[0], PALETTE[5]
NEVER = 1e9
Rows = list[dict[str, Any]]
NAMED = {
    "prompt": PROMPT,
    "new tokens": DECODE,
    "read, as any stage must": EDGE,
    "copied by the stage itself": COPIED,
}


@dataclass(frozen=True)
class Lane:
    """One stage's run. Each list has an entry per token: when it is ready, its text, and the bytes moved up to it.

    needed: bytes of weights and cache, read once in each step. copied: bytes that the stage itself copies, read and
    written.
    """

    name: str
    ends_ms: list[float]
    pieces: list[str]
    needed: list[int]
    copied: list[int]


def race_spec(lanes: Sequence[Lane], prompt: str, batch_size: int, text: str) -> dict[str, Any]:
    """Lay out the lanes in two columns, with a play button and a slider over the time of the slowest stage."""
    last = ceil(max(lane.ends_ms[-1] for lane in lanes))
    tick = max(1, round(last * TICK_MS / PLAY_MS))
    pieces = [list(_placed(lane, prompt)) for lane in lanes]
    lines = 1 + max(piece["line"] for own in pieces for piece in own)
    height = TITLE + lines * LINE + METERS
    texts, states, boxes = [], [], []
    most = max(lane.needed[-1] + lane.copied[-1] for lane in lanes)
    for number, lane in enumerate(lanes):
        x, y = number % 2 * (LANE + GAP), number // 2 * (height + GAP)
        boxes.append({"x": x, "y": y, "name": lane.name})
        texts += [
            piece | {"x": x + PAD + piece["x"], "y": y + TITLE + piece["line"] * LINE} for piece in pieces[number]
        ]
        meters = y + height - METERS + 8
        states += [state | {"x": x + PAD, "y": meters} for state in _states(lane, batch_size, most)]
    rows = -(-len(lanes) // 2)
    return {
        "$schema": SCHEMA,
        "description": text,
        "width": WIDTH,
        "height": rows * (height + GAP) + LABELS,
        "padding": 2,
        "background": "transparent",
        "signals": _signals(last, tick),
        "data": [
            {"name": "boxes", "values": boxes},
            {"name": "texts", "values": texts, "transform": [_filter("datum.when <= time")]},
            {"name": "legend", "values": _legend(rows * (height + GAP) - 2, TICK_MS / tick)},
            {"name": "states", "values": states, "transform": [_filter("datum.when <= time && time < datum.until")]},
        ],
        "marks": _marks(height),
    }


def _filter(condition: str) -> dict[str, str]:
    return {"type": "filter", "expr": condition}


def _signals(end: int, tick: int) -> Rows:
    """Make the signal time, in ms of the measured run, and the play button.

    While it plays, time grows by `tick` ms every TICK_MS, up to `end`, where the slowest stage is done.
    """
    timer = {"type": "timer", "throttle": TICK_MS}
    bind = {"input": "range", "min": 0, "max": end, "step": 1, "name": f"0 to {end:,} ms: "}
    time = {
        "name": "time",
        "value": 0,
        "bind": bind,
        "on": [
            {"events": {"signal": "play"}, "update": f"play && time >= {end} ? 0 : time"},
            {"events": timer, "update": f"play ? min(time + {tick}, {end}) : time"},
        ],
    }
    play = {"name": "play", "value": False, "bind": {"input": "checkbox", "name": "play "}}
    return [play | {"on": [{"events": timer, "update": f"play && time < {end}"}]}, time]


def _placed(lane: Lane, prompt: str) -> Iterator[dict[str, Any]]:
    """Place the prompt and the text of each token of a lane on lines; yield when each appears, and where."""
    line, x, widest = 0, 0.0, LANE - 2 * PAD
    for number, piece in enumerate([prompt, *lane.pieces]):
        shown = piece.replace("\n", "⏎").replace(" ", "␣" if number else " ")
        width = len(shown) * SIZE * CHAR + 3
        if x + width > widest:
            line, x = line + 1, 0.0
        when = lane.ends_ms[number - 1] if number else 0
        colour = DECODE if number else PROMPT
        yield {"when": round(when, 3), "text": shown, "x": round(x, 1), "line": line, "width": width, "fill": colour}
        x += width + 1


def _states(lane: Lane, batch_size: int, most: int) -> Iterator[dict[str, Any]]:
    """Yield what the meters below a text show until the next token.

    Every moment shows the speed of the whole run. A stage that has just finished its prefill has few tokens for all
    that time: its speed so far would be compared with that of a finished run.
    """
    starts, untils = [0, *lane.ends_ms], [*lane.ends_ms, NEVER]
    full, length, end = LANE - 2 * PAD, len(lane.ends_ms), lane.ends_ms[-1]
    whole_run = f"whole run {1e3 * batch_size * length / end:,.0f} tok/s, {end:,.0f} ms"
    for made, (when, until) in enumerate(zip(starts, untils, strict=True)):
        needed, copied = (sums[made - 1] if made else 0 for sums in (lane.needed, lane.copied))
        yield {
            "when": round(when, 3),
            "until": round(until, 3),
            "made": round(full * made / length, 1),
            "needed": round(full * needed / most, 1),
            "copied": round(full * copied / most, 1),
            "tokens": f"{made * batch_size:,} of {length * batch_size:,} tokens; {whole_run}",
            "bytes": f"{needed / 1e6:,.0f} MB of weights and cache read, {copied / 1e6:,.0f} MB copied",
        }


def _marks(height: float) -> Rows:
    return [
        _mark("rect", "boxes", width=LANE, height=height, stroke=EDGE, cornerRadius=3),
        _mark("text", "boxes", dx=PAD, dy=17, text="@name", fontWeight="bold", **_ink()),
        _mark("rect", "texts", width="@width", height=LINE - 2, fill="@fill", fillOpacity=0.25, cornerRadius=2),
        _mark("text", "texts", dx=1, dy=LINE - 6, text="@text", **_ink()),
        *_meter(0, "tokens", made=DECODE),
        *_meter(METERS // 2 - 3, "bytes", needed=EDGE, copied=COPIED),
        _mark("rect", "legend", width=11, height=11, fill="@fill", fillOpacity=0.7),
        _mark("text", "legend", dx=16, dy=10, text="@text", **_ink(11)),
    ]


def _meter(down: int, says: str, **parts: str) -> Rows:
    """Make the marks of a meter: a sentence, and below it a bar whose parts lie side by side."""
    marks = [_mark("text", "states", dy=down + 10, text=f"@{says}", **_ink(11))]
    before = ""
    for part, colour in parts.items():
        bar = _mark("rect", "states", width=f"@{part}", height=METER, fill=colour, fillOpacity=0.7)
        place = bar["encode"]["update"]
        place["y"] = {"field": "y", "offset": down + 15}
        place["x"] = {"signal": f"datum.x + datum.{before}"} if before else {"field": "x"}
        marks.append(bar)
        before = part
    return marks


def _legend(y: float, slower: float) -> Rows:
    speed = f"slowed down {slower:,.1f} times" if slower >= 1 else f"{1 / slower:,.1f} times as fast as measured"
    x, rows = 0.0, []
    for label, colour in {**NAMED, speed: "transparent"}.items():
        rows.append({"x": x, "y": y, "fill": colour, "text": label})
        x += 28 + len(label) * 11 * CHAR
    return rows


def _ink(size: int = SIZE) -> dict[str, Any]:
    return {"fill": INK, "fontSize": size, "font": MONOSPACE}


def _mark(kind: str, data: str, **channels: Any) -> dict[str, Any]:
    """Make a mark at the x and y of its row. In channels, "@name" is a field of the row, anything else a value."""
    encoded = {"x": {"field": "x"}, "y": {"field": "y"}}
    for channel, value in channels.items():
        is_field = isinstance(value, str) and value.startswith("@")
        encoded[channel] = {"field": value[1:]} if is_field else {"value": value}
    return {"type": kind, "from": {"data": data}, "encode": {"update": encoded}}
