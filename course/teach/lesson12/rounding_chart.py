"""The chart of walk_rounding: the page rounds the row again when a reader moves the outlier or changes the groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from roseinfer.display.chart import INK, PAGE_WIDTH, csv_data
from roseinfer.display.figure import PALETTE

from .text_price import LEVELS

if TYPE_CHECKING:
    import altair as alt

KEPT, LOST = "rounded to another level", "rounded to 0"
WIDTH, ROW, NEAR, BAR = PAGE_WIDTH - 80, 70, 200, 20  # pixels
MOST_TIMES = 20  # as large as a reader can make the outlier, at least
SHARED = "values that share a scale"


def chart_of(
    values: Sequence[float], place: int, other: float, times: float, groups: Sequence[int]
) -> alt.VConcatChart:
    """Draw the row, its values beside 0 before and after rounding, and the values that each group size loses.

    place: of the outlier. other: the largest other value. times: how many times as large the outlier is.
    """
    import altair as alt
    import pandas as pd

    most = max(MOST_TIMES, round(2 * times))
    outlier = alt.param(
        name="times",
        value=times,
        bind=alt.binding_range(min=1, max=most, step=0.1, name="outlier, times the largest other value: "),
    )
    group = alt.param(name="group", value=groups[0], bind=alt.binding_radio(options=list(groups), name=f"{SHARED}: "))
    sign = 1 if values[place] > 0 else -1
    rounded = (
        alt.Chart(csv_data(pd.DataFrame({"i": range(len(values)), "given": values})))
        .transform_calculate(
            x=f"datum.i == {place} ? {sign} * times * {other} : datum.given", size="abs(datum.x)", own=str(list(groups))
        )
        .transform_flatten(["own"])
        .transform_calculate(part="floor(datum.i / datum.own)")
        .transform_joinaggregate(largest="max(size)", groupby=["own", "part"])
        .transform_calculate(
            step=f"datum.largest / {LEVELS}",
            rounded="datum.step ? round(datum.x / datum.step) * datum.step : 0",
            lost="datum.x != 0 && datum.rounded == 0",
            becomes=f"datum.lost ? '{LOST}' : '{KEPT}'",
            error="datum.x ? abs(datum.x - datum.rounded) / datum.size : null",
        )
    )
    chosen = rounded.transform_filter("datum.own == group")
    colour = alt.Color(
        "becomes:N", title=None, scale=alt.Scale(domain=[LOST, KEPT], range=[PALETTE[3], PALETTE[2]]),
        legend=alt.Legend(orient="top"),
    )  # fmt: skip
    tips = ["i:Q", alt.Tooltip("x:Q", format=".3f"), alt.Tooltip("rounded:Q", format=".3f"),
            alt.Tooltip("step:Q", format=".3f")]  # fmt: skip
    at = alt.X("i:Q", title=None, scale=alt.Scale(domain=[0, len(values)], nice=False))
    near = alt.Scale(domain=[-1.08 * other, 1.08 * other], nice=False)
    row = chosen.mark_bar(width=max(1.0, WIDTH / len(values) - 1)).encode(
        at, alt.Y("size:Q", title="|x|", scale=alt.Scale(domain=[0, most * other], nice=False)), colour, tooltip=tips
    )
    place_before = alt.Y("x:Q", title="x beside 0", scale=near)
    moved = chosen.mark_rule(clip=True, strokeOpacity=0.6).encode(at, place_before, alt.Y2("rounded"), colour)
    ticks = chosen.mark_tick(clip=True, thickness=1.5, size=6, orient="horizontal", color=INK).encode(at, place_before)
    ends = chosen.mark_circle(clip=True, size=26, opacity=1).encode(
        at, alt.Y("rounded:Q", scale=near), colour, tooltip=tips
    )
    sizes = rounded.transform_aggregate(zeros="sum(lost)", error="mean(error)", groupby=["own"]).transform_calculate(
        said="datum.zeros + ' round to 0, mean relative error ' + format(datum.error, '.1%')",
    )
    shared = alt.Y("own:O", title=None, sort=list(groups))
    zeros = alt.X("zeros:Q", title="values that round to 0", scale=alt.Scale(domain=[0, len(values)], nice=False))
    bars = sizes.mark_bar(color=PALETTE[3]).encode(
        zeros, shared, opacity=alt.condition("datum.own == group", alt.value(0.9), alt.value(0.4))
    )
    counts = sizes.mark_text(align="left", dx=6).encode(zeros, shared, text="said:N")
    return alt.vconcat(
        row.properties(width=WIDTH, height=ROW, title="The row"),
        (moved + ticks + ends).properties(width=WIDTH, height=NEAR, title="A dash: before rounding; a dot: after it"),
        (bars + counts).properties(width=WIDTH, height=BAR * len(groups), title=SHARED.capitalize()),
    ).add_params(outlier, group)
