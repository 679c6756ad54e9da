"""Pictures of host and device: lanes of recorded runs (record_lanes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from roseinfer.display.chart import GRID, PAGE_WIDTH, SEAM, Chart, csv_data
from roseinfer.display.figure import INK as DARK_INK
from roseinfer.display.figure import PALETTE
from roseinfer.display.number_text import exact

from .step_lanes import COMMIT, COMPUTE, COPY, DEVICE, HOST, PLAN, UPLOAD, Lanes, LaneSpan

if TYPE_CHECKING:
    import altair
    import pandas as pd

BUBBLE = "bubble"
# Not those of requests (views/run_charts.py): greens for the host, violet for the device, brown for a copy.
COLOURS = {PLAN: PALETTE[2], COMMIT: "#8FD3BC", UPLOAD: "#A6761D", COMPUTE: "#B5A3DB", BUBBLE: GRID}
WIDTH = PAGE_WIDTH - 130
LANE_HEIGHT = 26
DIGITS = 4
PARAM = "chosen"  # by the slider


def draw_lanes(*runs: Lanes, begin: float = 0, end: float | None = None) -> Chart:
    """Draw a lane each for host and device of every run, from begin to end in ms, with the number of each span's step.

    Host work is green, computing violet. Grey: a bubble, in which the device waits between two steps.
    """
    _check(runs)
    return _lanes({0: list(runs)}, None, begin, end)


def draw_lanes_by(runs: Mapping[float, Sequence[Lanes]], label: str, end: float | None = None) -> Chart:
    """Draw lanes with a slider.

    runs: by the slider's value, evenly spaced, the first one shown first; each has as many runs, with the same names.
    """
    for one in runs.values():
        _check(one)
    return _lanes({value: list(one) for value, one in runs.items()}, label, 0, end)


def _check(runs: Sequence[Lanes]) -> None:
    if not runs or not all(isinstance(run, Lanes) for run in runs):
        raise ValueError(f"runs must be at least one Lanes, as record_lanes gives it, got {runs!r}")


def _lanes(runs: dict[float, list[Lanes]], label: str | None, begin: float, end: float | None) -> Chart:
    import altair as alt

    values = list(runs)
    shown = runs[values[0]]
    end = max(run.end for each in runs.values() for run in each) if end is None else end
    drawn = {what for each in runs.values() for run in each for _, what, *_ in _bars(run)}
    kinds = [what for what in COLOURS if what in drawn]
    panels = []
    for place, first in enumerate(shown):
        frame = _frame({value: each[place] for value, each in runs.items()}, begin, end)
        base = alt.Chart(csv_data(frame))
        if label is not None:
            base = base.transform_filter(f"datum.value == {PARAM}")
        panels.append(_panel(base, first, kinds, (begin, end), is_last=place == len(shown) - 1))
    chart = alt.vconcat(*panels, spacing=6)
    if label is not None:
        step = abs(values[1] - values[0]) if len(values) > 1 else 1
        bind = alt.binding_range(min=min(values), max=max(values), step=step, name=f"{label} ")
        chart = chart.add_params(alt.param(name=PARAM, value=values[0], bind=bind))
    lines = []
    for value, each in runs.items():
        lines += [f"{label} {value}:"] if label is not None else []
        lines += [f"{run.name}: {_text(run)}" for run in each]
    return Chart(chart, "\n".join(lines))


def _frame(runs: dict[float, Lanes], begin: float, end: float) -> pd.DataFrame:
    import pandas as pd

    rows = [
        (value, bar.lane, bar.what, bar.step, max(bar.begin, begin), min(bar.end, end))
        for value, run in runs.items()
        for bar in _bars(run)
        if bar.end > begin and bar.begin < end
    ]
    columns = ["value", "lane", "what", "step", "begin", "end"]
    return pd.DataFrame(rows, columns=columns).round(DIGITS)


def _bars(run: Lanes) -> list[LaneSpan]:
    """List a run's spans, and the bubbles between those of its device, each with the number of the step after it."""
    own = [span for span in run.spans if span.lane == DEVICE]
    bubbles = [
        LaneSpan(DEVICE, BUBBLE, after.step, before.end, after.begin)
        for before, after in pairwise(own)
        if after.begin > before.end
    ]
    return [*run.spans, *bubbles]


def _panel(
    base: altair.Chart, run: Lanes, kinds: list[str], window: tuple[float, float], is_last: bool
) -> altair.LayerChart:
    import altair as alt

    lanes = [lane for lane in (HOST, COPY, DEVICE) if any(span.lane == lane for span in run.spans)]
    axis = alt.Axis(labelFlush=False)  # moved inwards, the last label would touch the one before it
    x = alt.X("begin:Q", title="ms" if is_last else None, scale=alt.Scale(domain=window, nice=False), axis=axis)
    y = alt.Y("lane:N", sort=lanes, title=None, scale=alt.Scale(domain=lanes, paddingInner=0.15))
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(domain=kinds, range=[COLOURS[kind] for kind in kinds]),
        legend=alt.Legend(orient="top", symbolType="square"),
    )
    bars = base.mark_bar(stroke=SEAM, strokeWidth=1).encode(
        x=x,
        x2="end:Q",
        y=y,
        color=colour,
        tooltip=["lane:N", "what:N", "step:Q", "begin:Q", "end:Q"],
    )
    numbers = base.transform_filter(f"datum.lane == '{DEVICE}' && datum.what == '{COMPUTE}'").transform_calculate(
        middle="(datum.begin + datum.end) / 2"
    )
    text = numbers.mark_text(fontSize=11, color=DARK_INK).encode(
        x=alt.X("middle:Q", scale=alt.Scale(domain=window, nice=False)), y=y, text="step:Q"
    )
    return (bars + text).properties(width=WIDTH, height=LANE_HEIGHT * len(lanes), title=run.name)


def _text(run: Lanes) -> str:
    """Describe the lanes by exact facts: by the wall clock, steps and tokens alone."""
    made = f"{len(run.sizes)} steps, {sum(map(len, run.outputs))} tokens"
    if not run.is_model:
        return made
    return f"{made} in {exact(run.end)} ms, bubbles of {exact(run.bubbles)} ms"
