"""serving_chart: each request by its arrival: its TTFT, and its time to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roseinfer.display.chart import PAGE_WIDTH, Chart

if TYPE_CHECKING:
    from .result import ServingResult

MS = 1e3
HEIGHT = 170
MOST_DRAWN = 2000  # requests: Altair takes 5,000 rows, and a request has up to two
PANELS = {"TTFT": "TTFT (ms)", "whole answer": "whole answer (ms)"}


def serving_chart(result: ServingResult) -> Chart:
    """Draw a panel for each of PANELS; a point is a request, and its colour says how that ended.

    With more than MOST_DRAWN requests every second one is drawn, or every third, and so on, which the title says.
    """
    import altair as alt
    import pandas as pd

    every = -(-len(result.samples) // MOST_DRAWN) or 1
    rows = []
    for one in result.samples[::every]:
        times = {"whole answer": one["ended"]} | ({"TTFT": one["chunks"][0]} if one["chunks"] else {})
        rows += [
            {"arrival": one["arrival"], "ended": one["how"], "panel": name, "ms": MS * (at - one["arrival"])}
            for name, at in times.items()
        ]
    points = pd.DataFrame(rows, columns=["arrival", "ended", "panel", "ms"])
    a = result.arguments
    panels = []
    for name, title in PANELS.items():
        base = alt.Chart(points[points["panel"] == name])
        dots = base.mark_circle(size=18, opacity=0.55).encode(
            x=alt.X("arrival:Q", title="arrival (s)"),
            y=alt.Y("ms:Q", title=title),
            color=alt.Color("ended:N", title=None, legend=alt.Legend(orient="top")),
            tooltip=["ended:N", alt.Tooltip("arrival:Q", format=".2f"), alt.Tooltip("ms:Q", format=",.1f")],
        )
        layers = [dots]
        if name == "TTFT":
            layers.append(alt.Chart().mark_rule(strokeDash=[4, 3]).encode(y=alt.datum(a["ttft_ms"])))
        panels.append(alt.layer(*layers).properties(width=PAGE_WIDTH - 80, height=HEIGHT))
    title = f"{a['model']}: {a['rate']:g} requests/s for {a['seconds']:g} s"
    if every > 1:
        title += f", 1 of {every} requests drawn"
    chart = alt.vconcat(*panels).properties(title=title)
    [row] = result.rows
    told = ", ".join(f"{row[how]} {how}" for how in ("complete", "cancelled", "refused", "failed"))
    return Chart(chart, f"{title}: {', '.join(PANELS)}", f"{title}: {told}")
