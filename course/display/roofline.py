"""roofline_chart: steps as points under the two ceilings of a machine.

The roofline model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 2009.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from roseinfer.display.chart import INK, PAGE_WIDTH, Chart, zoom
from roseinfer.display.figure import PALETTE
from roseinfer.display.labels import labels

if TYPE_CHECKING:
    import pandas as pd

WIDTH, HEIGHT = PAGE_WIDTH - 80, 320
FLOOR_COLOUR = "#BBBBBB"
MARGIN = 2  # a factor that the axes go on by, beyond the points and the roof's corner
X, Y = "flops per byte", "GFLOP/s"


def roofline_chart(points: pd.DataFrame, bytes_per_s: float, peak: float, title: str) -> Chart:
    """Draw the roofline. points: a row per step, the floor first, with step, "flops per byte" and "GFLOP/s"."""
    import altair as alt
    import pandas as pd

    ceiling, slope = peak / 1e9, bytes_per_s / 1e9
    ridge = ceiling / slope
    left, right = min(points[X].min(), ridge) / MARGIN, max(points[X].max(), ridge) * MARGIN
    bottom, top = min(points[Y].min(), slope * left) / MARGIN, max(points[Y].max(), ceiling) * MARGIN
    roof = pd.DataFrame({X: [left, ridge, right], Y: [slope * left, ceiling, ceiling]})
    says = f"the roof: reading {slope:,.1f} GB/s, then arithmetic {ceiling:,.0f} GFLOP/s"
    signs = ["F", *map(str, range(1, len(points)))]
    x_pixel, y_pixel = log(right / left) / WIDTH, log(top / bottom) / HEIGHT
    places = [(log(x / left) / x_pixel, log(y / bottom) / y_pixel) for x, y in zip(points[X], points[Y], strict=True)]
    steps = points.assign(
        sign=signs,
        legend=[f"{sign}: {name}" for sign, name in zip(signs, points["step"], strict=True)],
        beside=[label.text for label in labels(places, signs, WIDTH)],
        dx=[label.dx for label in labels(places, signs, WIDTH)],
    )

    axes = {
        "x": alt.X(f"{X}:Q", scale=alt.Scale(type="log", domain=[left, right], nice=False)),
        "y": alt.Y(f"{Y}:Q", stack=None, scale=alt.Scale(type="log", domain=[bottom, top], nice=False)),
    }
    colours = [FLOOR_COLOUR, *(PALETTE[1:][i % (len(PALETTE) - 1)] for i in range(len(points) - 1))]
    names = list(steps["legend"])
    legend = alt.Legend(title=None, orient="bottom", columns=4)
    marks = {
        "color": alt.Color("legend:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        "shape": alt.Shape("legend:N", scale=alt.Scale(domain=names, range=["square", *["circle"] * len(names[1:])])),
    }
    under, drawn = alt.Chart(roof).encode(**axes), alt.Chart(steps).encode(**axes)
    chart = alt.layer(
        under.mark_area(clip=True, opacity=0.2, color=PALETTE[4])
        .encode(y2=alt.datum(bottom))
        .add_params(zoom("x", "y")),
        under.mark_line(clip=True, color=PALETTE[4]),
        drawn.mark_point(filled=True, clip=True, size=130, opacity=1, stroke=INK, strokeWidth=0.5).encode(
            **marks, tooltip=list(points.columns)
        ),
        drawn.mark_text(clip=True, align=alt.expr("datum.dx < 0 ? 'right' : 'left'"), dx=alt.expr("1.25 * datum.dx"))
        .encode(text="beside:N")
        .properties(name="signs")
        .add_params(zoom("x", "y")),
    )
    chart = chart.properties(name="roofline", width=WIDTH, height=HEIGHT, title=alt.Title(title, subtitle=says))
    return Chart(chart, f"{title}: {', '.join(names)}")
