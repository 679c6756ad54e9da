"""SpeedBars: contenders' tokens a second as bars, with the range of their runs and the floor that none can pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roseinfer.display.chart import PAGE_WIDTH, Chart

LABELS, NUMBERS, BAR = 180, 60, 28  # pixels: the width of the names and of the numbers, the height of a bar
WIDTH = PAGE_WIDTH - LABELS - NUMBERS
BEYOND = 1.5  # a floor of more than so many times the fastest run is off the axis: its arrow points out of the picture
MOST = "most"  # the end of the axis


class SpeedBars(Chart):
    """A bar for each of `names`. It is made once; call `show` whenever there are new speeds."""

    def __init__(self, names: Sequence[str], text: str) -> None:
        import altair as alt

        axis = alt.Axis(minExtent=LABELS, maxExtent=LABELS, labelLimit=LABELS, ticks=False)
        y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=list(names)), axis=axis)
        scale = alt.Scale(domain=[0, alt.expr(MOST)], nice=False)
        numbers = alt.Axis(tickCount=6, labelOverlap=True, labelFlush=False)
        x = alt.X("speed:Q", title="tok/s: the median run; line: from the slowest run to the fastest")
        tips = [alt.Tooltip("name:N"), *(alt.Tooltip(f"{end}:Q", format=",.1f") for end in ("speed", "low", "high"))]
        bars = alt.Chart(alt.NamedData("bars")).encode(y=y, tooltip=tips)
        floor = alt.Chart(alt.NamedData("floor"))
        chart = alt.layer(
            bars.mark_bar(height=BAR - 10, opacity=0.7).encode(x.scale(scale).axis(numbers)),
            bars.mark_rule(strokeWidth=2).encode(alt.X("low:Q"), alt.X2("high")),
            bars.transform_filter("datum.speed > 0")
            .mark_text(align="left", dx=8)
            .encode(x=alt.value(WIDTH), text=alt.Text("speed:Q", format=",.0f")),
            floor.transform_filter("!datum.beyond").mark_rule(strokeDash=[6, 4]).encode(alt.X("speed:Q")),
            floor.mark_text(align="right", baseline="bottom", y=-2).encode(x=alt.value(WIDTH), text="label:N"),
        ).properties(width=WIDTH, height=BAR * len(names))
        super().__init__(chart.add_params(alt.param(name=MOST, value=1)), text)

    def show(self, title: str, speeds: Mapping[str, tuple[float, float, float]], floor: float | None = None) -> None:
        """Show speeds: each contender's median, slowest and fastest run, in tokens a second, like `floor`."""
        rows: list[dict[str, Any]] = [
            {"name": name, "speed": mid, "low": low, "high": high} for name, (mid, low, high) in speeds.items()
        ]
        most = max(row["high"] for row in rows)
        rules: list[dict[str, Any]] = []
        if floor is not None:
            beyond = floor > BEYOND * most
            label = f"floor, {floor / most:.0f} times the fastest run" if beyond else "floor (dashed)"
            rules.append({"speed": floor, "beyond": beyond, "label": f"{label}: {floor:,.0f} tok/s{' →' * beyond}"})
            most = most if beyond else max(most, floor)
        ranges = [f"{name} {mid:,.0f} ({low:,.0f} to {high:,.0f})" for name, (mid, low, high) in speeds.items()]
        self.alt = f"{title}. tok/s: {', '.join(ranges)}; {', '.join(rule['label'] for rule in rules)}"
        self.spec |= {"datasets": {"bars": rows, "floor": rules}, "title": title}
        [end] = [param for param in self.spec["params"] if param["name"] == MOST]
        end["value"] = most or 1
