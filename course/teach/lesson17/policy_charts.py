"""Pictures of waiting: how long requests wait under each policy, and which requests wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from roseinfer.arrivals import Arrival
from roseinfer.display.chart import INK, PAGE_WIDTH, Chart, csv_data
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.planning.definitions import METRICS_BY_NAME, PERCENTILES, summary

if TYPE_CHECKING:
    import altair

MOST_POINTS = 400  # of a panel
COLUMNS = 2
# Not those of requests (views/run_charts.py): percentiles from light to dark.
SHADES = ["#C3B4E3", "#9479CF", "#6A4CA5", INK]
SHOWN = (*(f"p{p}" for p in PERCENTILES), "max")


class Requested(Protocol):
    """A request of a simulation, or of a recorded run."""

    arrival: Arrival
    times: SequenceTimes


Runs = Mapping[str, Sequence[Requested]]  # by the name of the policy


def draw_times(runs: Runs, metric: str = "waiting_time", unit: str = "s") -> Chart:
    """Draw one line per policy: the median of a metric of planning/definitions.py, its p90, p99 and longest time."""
    import altair as alt
    import pandas as pd

    found = {name: _times(requests, metric) for name, requests in runs.items()}
    frame = pd.DataFrame(
        [(name, part, round(at[part], 3)) for name, at in found.items() for part in SHOWN],
        columns=["policy", "part", "time"],
    )
    base = alt.Chart(csv_data(frame)).encode(
        x=alt.X("time:Q", title=f"{metric} ({unit})"),
        y=alt.Y("policy:N", title=None, sort=list(runs)),
        tooltip=["policy:N", "part:N", "time:Q"],
    )
    lines = base.mark_line(color="#BBBBBB").encode(detail="policy:N")
    scale = alt.Scale(domain=list(SHOWN), range=SHADES)
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=alt.Color("part:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
        shape=alt.Shape("part:N", title=None, scale=alt.Scale(domain=list(SHOWN))),
    )
    labels = 7 * max(map(len, runs))  # pixels
    chart = (lines + points).properties(width=PAGE_WIDTH - 50 - labels, height=36 * len(runs))
    told = (f"{name}: " + ", ".join(f"{part} {at[part]:.1f}" for part in SHOWN) for name, at in found.items())
    return Chart(chart, f"{metric} ({unit})\n" + "\n".join(told))


def draw_who_waits(runs: Runs, unit: str = "s") -> Chart:
    """Draw one panel per policy, one point per request: arrival and wait, coloured by its output length."""
    import altair as alt
    import pandas as pd

    most = max(_times(requests, "waiting_time")["max"] for requests in runs.values())
    panels = [_panel(name, requests, most, unit) for name, requests in runs.items()]
    rows = [alt.hconcat(*panels[i : i + COLUMNS]) for i in range(0, len(panels), COLUMNS)]
    tenths = {name: _tenths(pd.DataFrame(_points(requests), columns=NAMES)) for name, requests in runs.items()}
    told = (f"{name}: {short:.1f} and {long:.1f}" for name, (short, long) in tenths.items())
    head = f"mean waiting_time ({unit}) of the tenth with the shortest outputs, and with the longest"
    return Chart(alt.vconcat(*rows), f"{head}\n" + "\n".join(told))


NAMES = ["came", "waited", "output"]


def _panel(name: str, requests: Sequence[Requested], most: float, unit: str) -> altair.Chart:
    import altair as alt
    import pandas as pd

    points = _points(requests)
    frame = pd.DataFrame(points[:: -(-len(points) // MOST_POINTS)], columns=NAMES).round(3)
    return (
        alt.Chart(csv_data(frame))
        .mark_circle(size=22, opacity=0.8)
        .encode(
            x=alt.X("came:Q", title=f"arrival ({unit})"),
            y=alt.Y("waited:Q", title=f"waited ({unit})", scale=alt.Scale(domain=[0, most])),
            color=alt.Color(
                "output:Q",
                title="tokens of output",
                # without its dark end, which JupyterLab's dark theme would hide
                scale=alt.Scale(scheme=alt.SchemeParams("viridis", extent=[0.3, 1]), reverse=True),
                legend=alt.Legend(orient="top", gradientLength=160),
            ),
            tooltip=[f"{column}:Q" for column in NAMES],
        )
        .properties(width=(PAGE_WIDTH - 140) // COLUMNS, height=150, title=name)
    )


def _points(requests: Sequence[Requested]) -> list[tuple[float, float, int]]:
    return [(r.arrival.seconds, r.times.first_scheduled - r.arrival.seconds, r.arrival.output_len) for r in requests]


def _tenths(frame: Any) -> tuple[float, float]:
    by_output = frame.sort_values("output", kind="stable")["waited"]
    tenth = max(1, len(by_output) // 10)
    return by_output.head(tenth).mean(), by_output.tail(tenth).mean()


def _times(requests: Sequence[Requested], metric: str) -> dict[str, float]:
    """Summarise one metric of the requests; raises ValueError for an unknown metric."""
    if metric not in METRICS_BY_NAME:
        raise ValueError(f"metric must be one of {', '.join(METRICS_BY_NAME)}, got {metric!r}")
    return summary([r.times for r in requests], [METRICS_BY_NAME[metric]])[metric]
