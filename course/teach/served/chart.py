"""ServedChart: seconds until the same 24 requests are answered, a bar for each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from roseinfer.display.chart import PAGE_WIDTH, Chart
from roseinfer.display.figure import PALETTE

from .kept import Served

if TYPE_CHECKING:
    import altair

LABELS, NUMBERS, BAR = 180, 60, 20  # pixels: the width of the names and of the numbers, the height of a bar
WIDTH = PAGE_WIDTH - LABELS - NUMBERS
GOAL, YOURS = "engine", "my_engine"
SERVED = "served"  # the name of the chart's data
KINDS = ("so far", "this lesson", "the goal", "yours")


class ServedChart(Chart):
    """Chart of the same requests by every stage so far.

    rows: stages in order, the engine last. where: the machine. text: what nbval compares. lesson: the name of the stage
    that is dark, "" for none. before: the name of the stage that its sentence compares it with, "" for none. notes:
    lines below the sentence, such as why this stage gains nothing here.
    """

    def __init__(
        self,
        rows: Sequence[Served],
        where: str,
        text: str,
        lesson: str = "",
        before: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        self.rows = list(rows)
        by_name = {row.name: row for row in rows}
        own = by_name.get(lesson)
        title = sentence(own or rows[0], by_name.get(before), by_name[GOAL])
        marks = ["dark: this lesson"] * bool(own) + ["dashed: the engine"] * (own is not by_name[GOAL])
        marks += ["green: your own engine"] * (YOURS in by_name)
        means = f"{where}; {', '.join(marks)}"
        super().__init__(_bars(len(rows)), text, f"{title}. {'; '.join(f'{row.name}: {felt(row)}' for row in rows)}")
        self.spec["title"] = {"text": title, "subtitle": [*([felt(own)] if own else []), *notes, means]}
        named = {GOAL: KINDS[2], YOURS: KINDS[3]}
        kinds = [KINDS[1] if row is own else named.get(row.name, KINDS[0]) for row in rows]
        values = [asdict(row) | {"kind": kind} for row, kind in zip(rows, kinds, strict=True)]
        self.spec |= {"datasets": {SERVED: values}}


def sentence(own: Served, before: Served | None, engine: Served) -> str:
    """Say how long the stage takes, and how long the stage before it took."""
    if before:
        return f"The same 24 requests, now in {own.seconds:.2f} s; they took {before.seconds:.2f} s with {before.name}"
    return f"{own.name} answers 24 requests in {own.seconds:.2f} s, the engine in {engine.seconds:.2f} s"


def felt(row: Served) -> str:
    """Write the numbers that a user feels of one stage."""
    return (
        f"{row.seconds:.2f} s; first token after {row.first_token * 1e3:,.0f} ms (median), at most "
        f"{row.slowest_first_token * 1e3:,.0f} ms; {row.tokens_per_second:,.0f} tok/s; {row.kv_bytes / 1e6:.1f} MB of "
        "KV cache"
    )


def _bars(num_rows: int) -> altair.LayerChart:
    import altair as alt

    axis = alt.Axis(minExtent=LABELS, maxExtent=LABELS, labelLimit=LABELS, ticks=False)
    y = alt.Y("name:N", title=None, sort=None, axis=axis)
    x = alt.X(
        "seconds:Q",
        title="seconds until all are answered: the median run; line: from the fastest run to the slowest",
        axis=alt.Axis(tickCount=5, labelOverlap=True),
    )
    colors = alt.Scale(domain=list(KINDS), range=[PALETTE[4], PALETTE[0], "transparent", PALETTE[2]])
    formats = dict.fromkeys(("seconds", "first_token", "slowest_first_token"), ".3f")
    formats |= dict.fromkeys(("tokens_per_second", "kv_bytes"), ",.0f")
    tips = [alt.Tooltip("name:N"), *(alt.Tooltip(f"{name}:Q", format=own) for name, own in formats.items())]
    bars = alt.Chart(alt.NamedData(SERVED)).encode(y=y, tooltip=tips)
    return alt.layer(
        bars.mark_bar(height=BAR - 6, strokeDash=[4, 3], strokeWidth=1.5).encode(
            x,
            color=alt.Color("kind:N", scale=colors, legend=None),
            stroke=alt.condition(f"datum.kind == '{KINDS[2]}'", alt.value(PALETTE[3]), alt.value("transparent")),
        ),
        bars.mark_rule(strokeWidth=1.5).encode(alt.X("fastest:Q"), alt.X2("slowest")),
        bars.mark_text(align="left", dx=8).encode(x=alt.value(WIDTH), text=alt.Text("seconds:Q", format=".2f")),
    ).properties(width=WIDTH, height=BAR * num_rows)
