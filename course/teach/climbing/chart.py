"""ClimbChart: a bar per stage in the order of the course; the engine is the goal, and transformers a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roseinfer.display.chart import PAGE_WIDTH, Chart
from roseinfer.display.figure import PALETTE

from .speeds import Speed

if TYPE_CHECKING:
    import altair

LABELS, NUMBERS, BAR = 180, 150, 22  # pixels: the width of the names and of the numbers, the height of a bar
WIDTH = PAGE_WIDTH - LABELS - NUMBERS
GOAL = "engine"
MEANS = "dashed: the engine, where the climb leads; dotted: transformers' generate"
KINDS = ("so far", "this lesson", "the goal")


@dataclass(frozen=True)
class Side:
    """Speeds on one machine. where: its name, and what ran. floor: tokens per second that no stage can exceed.

    rows: stages in order, the engine last. hf: transformers' generate.
    """

    where: str
    rows: Sequence[Speed]
    hf: Speed
    floor: float


class ClimbChart(Chart):
    """Chart of the climb. text: what nbval compares. lesson: the stage that is lit, "" for the whole climb.

    left_out: stages that were not timed, and why.
    """

    def __init__(
        self, sides: Sequence[Side], text: str, lesson: str = "", left_out: Mapping[str, str | None] | None = None
    ) -> None:
        import altair as alt

        self.sides, self.lesson, self.left_out = list(sides), lesson, dict(left_out or {})
        charts = [_bars(side, lesson).properties(title=self._title(side)) for side in sides]
        super().__init__(alt.vconcat(*charts, spacing=30), text, "; ".join(map(_told, sides)))

    def _title(self, side: Side) -> altair.TitleParams:
        import altair as alt

        reasons = [f"{name} is left out: {reason}" for name, reason in self.left_out.items()]
        means = f"dark: this lesson; {MEANS}" if self.lesson else MEANS
        return alt.TitleParams(gained(side, self.lesson), subtitle=[side.where, *reasons, means])


def gained(side: Side, lesson: str) -> str:
    """Say in one sentence how far the climb has come with that lesson's stage, or with the engine."""
    shown = side.rows if not lesson else [row for row in side.rows if row.name != GOAL]
    first, last = shown[0], shown[-1]
    if first is last:
        engine = side.rows[-1].tokens_per_second / first.tokens_per_second
        return f"{first.name} is the first step of the climb; the engine is {engine:.1f} times as fast"
    times = last.tokens_per_second / first.tokens_per_second
    return f"{last.name} decodes {times:.1f} times as many tokens per second as {first.name}"


def _told(side: Side) -> str:
    speeds = [f"{row.name} {row.tokens_per_second:,.0f}" for row in (*side.rows, side.hf)]
    return f"tok/s, {side.where}: {', '.join(speeds)}; floor {side.floor:,.0f}"


def _kind(name: str, lesson: str) -> str:
    return KINDS[2] if name == GOAL else KINDS[1] if name == lesson else KINDS[0]


def _bars(side: Side, lesson: str) -> altair.LayerChart:
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "name": row.name,
            "kind": _kind(row.name, lesson),
            "speed": row.tokens_per_second,
            "low": row.slowest,
            "high": row.fastest,
            "share": row.tokens_per_second / side.floor,
            "number": f"{row.tokens_per_second:,.0f}, {row.tokens_per_second / side.floor:.1%} of floor",
        }
        for row in side.rows
    ]
    axis = alt.Axis(minExtent=LABELS, maxExtent=LABELS, labelLimit=LABELS, ticks=False)
    y = alt.Y("name:N", title=None, sort=None, axis=axis)
    x = alt.X(
        "speed:Q",
        title="tok/s, decoding alone: the median run; line: from the slowest run to the fastest",
        axis=alt.Axis(tickCount=5, labelOverlap=True),
    )
    colors = alt.Scale(domain=list(KINDS), range=[PALETTE[4], PALETTE[0], "transparent"])
    tips = [alt.Tooltip("name:N"), *(alt.Tooltip(f"{end}:Q", format=",.0f") for end in ("speed", "low", "high"))]
    bars = alt.Chart(alt.Data(values=rows)).encode(y=y, tooltip=[*tips, alt.Tooltip("share:Q", format=".1%")])
    hf = alt.Chart(alt.Data(values=[{"speed": side.hf.tokens_per_second, "label": side.hf.name}]))
    return alt.layer(
        bars.mark_bar(height=BAR - 7, strokeDash=[4, 3], strokeWidth=1.5).encode(
            x,
            color=alt.Color("kind:N", scale=colors, legend=None),
            stroke=alt.condition(f"datum.kind == '{KINDS[2]}'", alt.value(PALETTE[3]), alt.value("transparent")),
        ),
        bars.mark_rule(strokeWidth=1.5).encode(alt.X("low:Q"), alt.X2("high")),
        bars.mark_text(align="left", dx=8).encode(x=alt.value(WIDTH), text="number:N"),
        hf.mark_rule(strokeDash=[2, 3], strokeWidth=1.5, color=PALETTE[1]).encode(alt.X("speed:Q")),
        hf.mark_text(baseline="bottom", align="left", dx=4, y=-3).encode(alt.X("speed:Q"), text="label:N"),
    ).properties(width=WIDTH, height=BAR * len(rows))
