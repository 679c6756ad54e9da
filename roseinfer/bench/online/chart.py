"""latency_chart: throughput against latency, a curve over budgets for each contender, as in post 003."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roseinfer.display.chart import PAGE_WIDTH, Chart, zoom
from roseinfer.display.labels import BESIDE, budget_labels

if TYPE_CHECKING:
    import altair
    import pandas as pd

    from .result import OnlineResult, Row

SHOWN = {"latency": "time of a step, p50 (ms)", "ttft": "TTFT, p50 (ms)", "itl": "ITL, p99 (ms)"}
STAT = {"latency": "p50", "ttft": "p50", "itl": "p99"}
COLUMNS, MARGIN, HEIGHT = 2, 70, 220
WIDTH = PAGE_WIDTH // COLUMNS - MARGIN
BEYOND = 1.2  # of the largest value, for what stands beside it
MS = 1e3


def latency_chart(result: OnlineResult) -> Chart:
    """Draw one panel per metric of SHOWN, with a curve for each contender under each load; better is right and down.

    A point is a budget, which is named beside it. Point at one for all of its figures; click a name in the legend to
    see that curve alone.
    """
    import altair as alt
    import pandas as pd

    points = pd.DataFrame([_point(row) for row in result.rows])
    curves = list(dict.fromkeys(points["curve"])) if len(points) else []
    picked = alt.selection_point(fields=["curve"], bind="legend", name="picked")
    legend = alt.Legend(orient="top", columns=2, symbolLimit=0)
    colour = alt.Color("curve:N", title=None, scale=alt.Scale(domain=curves), legend=legend)
    figures = ("requests_per_second", "tokens_per_second", *STAT)
    tips = ["curve:N", "budget:Q", "max_num_seqs:Q", *(alt.Tooltip(f"{name}:Q", format=",.2f") for name in figures)]

    def from_0(column: str) -> alt.Scale:
        most = points[column].max() if len(points) else 0
        return alt.Scale(domain=[0, BEYOND * most if most > 0 else 1], nice=False)

    panels = []
    for place, (metric, title) in enumerate(SHOWN.items()):
        base = alt.Chart(_told(points, metric)).encode(
            x=alt.X(
                "requests_per_second:Q",
                title="requests a second",
                scale=from_0("requests_per_second"),
                axis=alt.Axis(tickCount=4),
            ),
            y=alt.Y(f"{metric}:Q", title=title, scale=from_0(metric)),
            color=colour,
            opacity=alt.condition(picked, alt.value(1), alt.value(0.15)),
        )
        lines = base.mark_line(strokeWidth=1.5).encode(order="budget:Q", detail="curve:N")
        dots = base.mark_point(filled=True, size=50, opacity=1).encode(tooltip=tips)
        labels = base.mark_text(fontSize=10, **BESIDE).encode(text="label:N")
        panel = alt.layer(lines.add_params(_zoom(place), *([] if place else [picked])), dots, labels)
        panels.append(panel.properties(width=WIDTH, height=HEIGHT))
    title = f"{result.arguments['model']}: throughput and latency over token budgets"
    chart = alt.concat(*panels, columns=COLUMNS).properties(title=title)
    return Chart(chart, f"{title}: {', '.join(curves)}", _alt(title, result.rows))


def _told(points: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Select the points that have this metric, curve by curve, and add the labels of their budgets."""
    import pandas as pd

    if not len(points):
        return points
    known = points.dropna(subset=[metric])
    x, y = "requests_per_second", metric
    # The axes' ends are those of all curves: labels are placed in the panel's pixels.
    ends = (known[x].max(), known[y].max())
    told = [
        budget_labels(curve.sort_values("budget"), x, y, (WIDTH, HEIGHT), BEYOND, ends)
        for _, curve in known.groupby("curve", sort=False)
    ]
    return pd.concat(told, ignore_index=True) if told else known


def _zoom(place: int) -> altair.Parameter:
    """Make a zoom for one panel."""
    own = zoom("x", "y")
    own.name = own.param.name = f"zoom{place}"
    return own


def _point(row: Row) -> dict:
    values = {metric: row["metrics"].get(metric, {}).get(stat) for metric, stat in STAT.items()}
    return {
        "curve": f"{row['name']}, {row['load']}" + (", partial" if row["partial"] else ""),
        "budget": row["budget"],
        "max_num_seqs": row["max_num_seqs"],
        "requests_per_second": row["requests_per_second"],
        "tokens_per_second": row["tokens_per_second"],
        **{metric: None if value is None else MS * value for metric, value in values.items()},
    }


def _alt(title: str, rows: list[Row]) -> str:
    said = [f"{r['name']}, budget {r['budget']}, {r['load']}: {r['requests_per_second']:.2f} a second" for r in rows]
    return f"{title}. {'; '.join(said)}"
