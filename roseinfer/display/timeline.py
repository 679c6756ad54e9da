"""The timeline figure: who ran when, on the host and on the device, with the gaps left white."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from roseinfer.profiling.chrome import Slice
from roseinfer.profiling.trace import DEVICE_SPAN, DEVICE_WORK, HOST_SPAN

# Okabe and Ito's colour-blind-safe palette. The course's own spans keep one colour in every notebook.
SPAN_COLOURS = {
    "roseinfer.decode_step_sessions.total": "#999999",
    "roseinfer.decode_step_sessions.build_batched_past": "#E69F00",
    "roseinfer.decode_step_sessions.build_block_tables": "#F0E442",
    "roseinfer.decode_step_sessions.h2d_block_tables": "#CC79A7",
    "roseinfer.model.forward": "#56B4E9",
    "roseinfer.kv.append_token": "#009E73",
}
OTHER_COLOURS = ("#D55E00", "#0072B2", "#CC79A7", "#F0E442", "#E69F00", "#56B4E9", "#009E73")
WORK_COLOUR = "#555555"
LETTER_WIDTH = 0.008  # of the axes' width: a bar has its name written inside if it is wide enough for it


class Lane(NamedTuple):
    label: str
    slices: list[Slice]
    named: bool  # spans, coloured by name; otherwise ops or kernels, all in one colour


class Timeline(Figure):
    """A matplotlib Figure with `alt_text`. text/plain has the host lanes only, which are the same anywhere."""

    alt_text: str
    host_text: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=110, metadata={"Software": None})
        bundle = {"text/plain": self.host_text, "image/png": image.getvalue()}
        return bundle, {"image/png": {"alt": self.alt_text}}


def draw_timeline(slices: Sequence[Slice], *, steps: int, prefix: str, note: str) -> Timeline:
    """See Trace.timeline. Raises ValueError if `steps` is below 1 or more than the trace has."""
    spans = [e for e in slices if e.cat == HOST_SPAN and e.name.startswith(prefix)]
    outermost = [span for span, depth in nesting(spans) if depth == 0]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= len(outermost):
        raise ValueError(f"steps must be an integer from 1 to {len(outermost)}, the steps in the trace; got {steps!r}")
    start, end = outermost[0].ts, max(span.end for span in outermost[:steps])
    window = [e for e in slices if start <= e.ts < end]
    host, device = host_lanes(window, prefix), device_lanes(window, prefix)

    figure = Timeline(figsize=(10, 3.4), layout="constrained")
    axes = figure.add_subplot()
    _draw_lanes(axes, host + device, start, end)
    title = f"{steps} step{'s' if steps > 1 else ''}"
    axes.set_title(title + ("" if device else ": host only, no device in this trace"), loc="left", fontsize=10)
    axes.set_title(note, loc="right", fontsize=8, color=WORK_COLOUR)
    figure.host_text = f"Timeline of {title}. {_describe(host)}"
    figure.alt_text = f"{figure.host_text} {_describe(device) or 'No device lane in this trace.'}"
    return figure


def nesting(slices: Iterable[Slice]) -> list[tuple[Slice, int]]:
    """Each slice with its depth among those given on its thread; given in time order, enclosing ones first."""
    open_slices: dict[tuple[int | None, int | None], list[Slice]] = {}
    nested = []
    for event in slices:
        stack = open_slices.setdefault((event.pid, event.tid), [])
        while stack and stack[-1].end <= event.ts:
            stack.pop()
        nested.append((event, len(stack)))
        stack.append(event)
    return nested


def host_lanes(window: Sequence[Slice], prefix: str) -> list[Lane]:
    """Per thread with spans: a lane for each depth of spans, and one for the outermost aten ops."""
    spans = [e for e in window if e.cat == HOST_SPAN and e.name.startswith(prefix)]
    threads = list(dict.fromkeys((e.pid, e.tid) for e in spans))
    lanes = []
    for number, thread in enumerate(threads, start=1):
        host = "host" if len(threads) == 1 else f"host {number}"
        nested = nesting(e for e in spans if (e.pid, e.tid) == thread)
        for depth in range(1 + max(depth for _, depth in nested)):
            label = "spans" if depth else "steps"
            lanes.append(Lane(f"{host}: {label}", [e for e, d in nested if d == depth], named=True))
        ops = nesting(e for e in window if e.cat == "cpu_op" and (e.pid, e.tid) == thread)
        lanes.append(Lane(f"{host}: ops", [e for e, depth in ops if depth == 0], named=False))
    return lanes


def device_lanes(window: Sequence[Slice], prefix: str) -> list[Lane]:
    """Per stream with work: its spans, then its kernels and copies."""
    work = [e for e in window if e.cat in DEVICE_WORK]
    streams = sorted({(e.pid, e.tid) for e in work}, key=str)
    lanes = []
    for stream in streams:
        device = "device" if len(streams) == 1 else f"device {stream[0]}, stream {stream[1]}"
        on_stream = [e for e in window if (e.pid, e.tid) == stream]
        spans = [e for e in on_stream if e.cat == DEVICE_SPAN and e.name.startswith(prefix)]
        if spans:
            lanes.append(Lane(f"{device}: spans", spans, named=True))
        lanes.append(Lane(f"{device}: kernels", [e for e in on_stream if e.cat in DEVICE_WORK], named=False))
    return lanes


def _draw_lanes(axes: Axes, lanes: Sequence[Lane], start: int, end: int) -> None:
    colours = _colours_by_name(lanes)
    for row, lane in enumerate(lanes):
        bars = [((e.ts - start) / 1e6, e.dur / 1e6) for e in lane.slices]
        faces = [colours[e.name] if lane.named else WORK_COLOUR for e in lane.slices]
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=faces, linewidth=0)
        for (left, width), event in zip(bars, lane.slices, strict=True):
            if lane.named and width * 1e6 >= len(short_name(event.name)) * LETTER_WIDTH * (end - start):
                axes.text(
                    left + width / 2, row, short_name(event.name), ha="center", va="center", fontsize=8,
                    color=_text_colour(colours[event.name]), clip_on=True,
                )  # fmt: skip
    last = max([end, *(e.end for lane in lanes for e in lane.slices)])
    axes.set_xlim(0, (last - start) / 1e6)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), [lane.label for lane in lanes], fontsize=8)
    axes.set_xlabel("ms since the step began; white is a gap", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.barh(0, 0, color=colour, label=short_name(name)) for name, colour in colours.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, fontsize=8, frameon=False)


def _colours_by_name(lanes: Sequence[Lane]) -> dict[str, str]:
    names = dict.fromkeys(e.name for lane in lanes if lane.named for e in lane.slices)
    others = [name for name in names if name not in SPAN_COLOURS]
    cycle = {name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)}
    return {name: SPAN_COLOURS.get(name) or cycle[name] for name in names}


def _text_colour(background: str) -> str:
    red, green, blue = to_rgb(background)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.38 else "white"


def short_name(name: str) -> str:
    """The span's last part: roseinfer.kv.append_token -> append_token."""
    return name.rsplit(".", 1)[-1]


def _describe(lanes: Sequence[Lane]) -> str:
    """Exact facts only: labels, and which spans, in order."""
    parts = []
    for lane in lanes:
        names = ", ".join(dict.fromkeys(short_name(e.name) for e in lane.slices)) if lane.named else "bars"
        parts.append(f"{lane.label} ({names})")
    return f"Lanes: {'; '.join(parts)}." if parts else ""
