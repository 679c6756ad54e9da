"""draw_lines: one line per name over the same numbers, such as the bytes that stages copy by their cached tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data


def draw_lines(
    text: str, x: Sequence[float], lines: Mapping[str, Sequence[float]], x_title: str, y_title: str
) -> Chart:
    """Chart a line per name through a point for each number of `x`.

    Args:
        text: what the chart shows, in exact facts.
        x: the numbers, from left to right.
        lines: a number for each of `x`, by name.
        x_title: what `x` counts.
        y_title: what the lines count.

    Raises ValueError for a line of another length.
    """
    import altair as alt
    import pandas as pd

    for name, values in lines.items():
        if len(values) != len(x):
            raise ValueError(f"lines must have {len(x)} numbers each, one for each x, got {len(values)} of {name!r}")
    points = [(name, *point) for name, values in lines.items() for point in zip(x, values, strict=True)]
    frame = pd.DataFrame(points, columns=["name", "x", "y"])
    steps = {"tickMinStep": 1} if all(float(number).is_integer() for number in x) else {}
    chart = alt.Chart(csv_data(frame)).mark_line(point=True).encode(
        x=alt.X("x:Q", title=x_title, axis=alt.Axis(tickCount=8, **steps)),
        y=alt.Y("y:Q", title=y_title),
        color=alt.Color("name:N", title=None, sort=None, legend=alt.Legend(orient="top")),
        tooltip=["name:N", alt.Tooltip("x:Q", title=x_title), alt.Tooltip("y:Q", title=y_title, format=",.2f")],
    )  # fmt: skip
    return Chart(chart.properties(width=PAGE_WIDTH - 100, height=220), text)
