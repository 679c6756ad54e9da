"""ServedChart: a bar per stage for one of the numbers that a user feels; this lesson is dark, the engine the goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from roseinfer.display.chart import PAGE_WIDTH, Chart
from roseinfer.display.figure import PALETTE

from .kept import Served

if TYPE_CHECKING:
    import altair

LABELS, NUMBERS, BAR = 180, 70, 20  # pixels: the width of the names and of the numbers, the height of a bar
WIDTH = PAGE_WIDTH - LABELS - NUMBERS
GOAL = "engine"
SERVED = "served"  # the name of the chart's data
KINDS = ("so far", "this lesson", "the goal")


class Number(NamedTuple):
    """A number of Served: its unit and how to write it, and a sentence about a stage and the one before it."""

    unit: str
    scale: float
    format: str
    sentence: str

    def text(self, value: float) -> str:
        return f"{value * self.scale:{self.format}} {self.unit}"


NUMBERS_SHOWN = {
    "seconds": Number("s", 1, ".2f", "The same 24 requests, now all answered in {now}; with {before} it took {then}"),
    "first_token": Number(
        "ms", 1e3, ",.0f", "Half of the 24 requests have their first token within {now}; with {before} it took {then}"
    ),
    "slowest_first_token": Number(
        "ms", 1e3, ",.0f", "The slowest first token of the same 24 requests takes {now}; with {before} it took {then}"
    ),
    "kv_bytes": Number(
        "MB", 1e-6, ",.1f", "The KV cache of the same 24 requests takes {now} at the peak; with {before} it took {then}"
    ),
}
TITLES = {
    "seconds": "seconds until all 24 requests are answered: the median run; line: from the fastest run to the slowest",
    "first_token": "ms from arrival to the first token, the median of the 24 requests",
    "slowest_first_token": "ms from arrival to the first token, the slowest of the 24 requests",
    "kv_bytes": "MB of KV cache at the peak",
}


class ServedChart(Chart):
    """Chart of the same requests by every stage so far.

    rows: stages in order, the engine last. where: the machine. text: what nbval compares. lesson: the name of the stage
    that is dark, "" for all. before: the stage that its sentence compares it with, "" for none. shows: a name in
    NUMBERS_SHOWN. notes: lines below the title, such as why this stage moves no number.
    """

    def __init__(
        self,
        rows: Sequence[Served],
        where: str,
        text: str,
        lesson: str = "",
        before: str = "",
        shows: str = "seconds",
        notes: Sequence[str] = (),
    ) -> None:
        self.rows, self.lesson = list(rows), lesson
        by_name = {row.name: row for row in rows}
        dark = by_name.get(lesson)
        title = sentence(dark, by_name.get(before), by_name[GOAL], shows) if dark else sentence_of_all(rows)
        felt = [numbers_of(dark)] if dark else []
        means = [f"{where}; dark: this lesson, dashed: the engine" if dark else f"{where}; dashed: the engine"]
        super().__init__(_bars(rows, lesson, shows), text, f"{title}. {'; '.join(map(_told, rows))}")
        self.spec |= {"datasets": {SERVED: [_values(row, lesson, shows) for row in rows]}}
        self.spec["title"] = {"text": title, "subtitle": [*felt, *notes, *means]}


def sentence(own: Served, before: Served | None, engine: Served, shows: str) -> str:
    """Say what the stage's number is, and what it was with the stage before it."""
    number = NUMBERS_SHOWN[shows]
    now = number.text(getattr(own, shows))
    if before:
        return number.sentence.format(now=now, before=before.name, then=number.text(getattr(before, shows)))
    return f"{own.name} answers 24 requests in {now}; the engine takes {number.text(getattr(engine, shows))}"


def sentence_of_all(rows: Sequence[Served]) -> str:
    first, engine = rows[0], rows[-1]
    return f"The same 24 requests: {first.seconds:.2f} s with {first.name}, {engine.seconds:.2f} s with the engine"


def numbers_of(row: Served) -> str:
    """Write what else a user feels of one stage, in a line."""
    return (
        f"first token after {row.first_token * 1e3:,.0f} ms (median) and {row.slowest_first_token * 1e3:,.0f} ms "
        f"(slowest); {row.tokens_per_second:,.0f} tokens per second; {row.kv_bytes / 1e6:.1f} MB of KV cache"
    )


def _told(row: Served) -> str:
    return f"{row.name} {row.seconds:.2f} s, {numbers_of(row)}"


def _values(row: Served, lesson: str, shows: str) -> dict[str, Any]:
    number, kind = NUMBERS_SHOWN[shows], KINDS[row.name == lesson]
    has_range = shows == "seconds"  # the other numbers are of the median run alone
    return asdict(row) | {
        "kind": KINDS[2] if row.name == GOAL and lesson != GOAL else kind,
        "value": getattr(row, shows) * number.scale,
        "number": number.text(getattr(row, shows)),
        "low": row.fastest if has_range else None,
        "high": row.slowest if has_range else None,
    }


def _bars(rows: Sequence[Served], lesson: str, shows: str) -> altair.LayerChart:
    import altair as alt

    axis = alt.Axis(minExtent=LABELS, maxExtent=LABELS, labelLimit=LABELS, ticks=False)
    y = alt.Y("name:N", title=None, sort=None, axis=axis)
    x = alt.X("value:Q", title=TITLES[shows], axis=alt.Axis(tickCount=5, labelOverlap=True))
    colors = alt.Scale(domain=list(KINDS), range=[PALETTE[4], PALETTE[0], "transparent"])
    tips = [
        alt.Tooltip("name:N"),
        *(
            alt.Tooltip(f"{name}:Q", format=".3f")
            for name in ("seconds", "fastest", "slowest", "first_token", "slowest_first_token")
        ),
        *(alt.Tooltip(f"{name}:Q", format=",.0f") for name in ("tokens_per_second", "kv_bytes")),
    ]
    bars = alt.Chart(alt.NamedData(SERVED)).encode(y=y, tooltip=tips)
    return alt.layer(
        bars.mark_bar(height=BAR - 6, strokeDash=[4, 3], strokeWidth=1.5).encode(
            x,
            color=alt.Color("kind:N", scale=colors, legend=None),
            stroke=alt.condition(f"datum.kind == '{KINDS[2]}'", alt.value(PALETTE[3]), alt.value("transparent")),
        ),
        bars.transform_filter("datum.low != null").mark_rule(strokeWidth=1.5).encode(alt.X("low:Q"), alt.X2("high")),
        bars.mark_text(align="left", dx=8).encode(x=alt.value(WIDTH), text="number:N"),
    ).properties(width=WIDTH, height=BAR * len(rows))
