"""click_timeline: a span of a trace with all that runs inside it; a click on an event tells its times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roseinfer.display.chart import INK, PAGE_WIDTH, Chart, csv_data, zoom
from roseinfer.display.figure import PALETTE
from roseinfer.display.timeline.lanes import nesting
from roseinfer.profiling import Trace

from .events import FORWARD

if TYPE_CHECKING:
    import altair
    import pandas as pd

CHOSEN, CHILD, OTHER = PALETTE[0], PALETTE[1], "#999999"
ROW = 26  # pixels
IS_CHILD = "isArray(picked.id) && indexof(picked.id, datum.parent) >= 0"
HOW = "µs since the span began (drag to move, Ctrl + wheel to zoom, double click for all)"


def click_timeline(trace: Trace, span: str = FORWARD, first: str = "aten::linear") -> Chart:
    """Draw the shortest run of a span and the events inside it, in a row for each depth. A click chooses an event.

    Args:
        trace: from capture.
        span: name of the span.
        first: name of the event that is chosen before the first click: the first one that is called so.

    The chosen event and those directly inside it are coloured, and a line tells its inclusive and its self time.
    Raises ValueError for a span that the trace does not have, and for a `first` that does not run inside it.
    """
    events = nested_events(trace, span)
    if first not in set(events["name"]):
        raise ValueError(f"first must be an event inside {span}, got {first!r}")
    text = f"the shortest {span}: {len(events)} events, {events['depth'].max() + 1} deep"
    chosen = int(events.index[events["name"] == first][0])
    return Chart(_draw(events, chosen), text, f"{text}\n{events['says'][chosen]}")


def nested_events(trace: Trace, span: str) -> pd.DataFrame:
    """Table the shortest span called so and what runs inside it on its thread, a row each, in time order.

    Columns: id, parent (the id of the event around it, -1 for the span), depth, name, from and to in µs since the
    span's start, and says, a sentence with inclusive and self time.
    """
    import pandas as pd

    whole = min((event for event in trace.slices if event.name == span), key=lambda event: event.dur, default=None)
    if whole is None:
        raise ValueError(f"span must be in the trace, got {span!r}")
    on_thread = [event for event in trace.slices if (event.pid, event.tid) == (whole.pid, whole.tid)]
    inside = nesting(event for event in on_thread if whole.ts <= event.ts and event.end <= whole.end)
    start = next(number for number, (event, _) in enumerate(inside) if event == whole)  # not what is as long, around it
    top = inside[start][1]
    rows, last = [], {-1: -1}  # last: of each depth, the id of the event that came last
    for number, (event, depth) in enumerate(inside[start:]):
        last[depth - top] = number
        parent = last[depth - top - 1]
        rows.append((number, parent, depth - top, event.name, event.ts - whole.ts, event.end - whole.ts))
    frame = pd.DataFrame(rows, columns=["id", "parent", "depth", "name", "from", "to"])
    took = frame["to"] - frame["from"]
    called = took.groupby(frame["parent"]).sum().reindex(frame.index, fill_value=0)
    frame["says"] = [
        f"{name}: inclusive {all_ns / 1e3:.1f} µs, self {(all_ns - inner_ns) / 1e3:.1f} µs"
        for name, all_ns, inner_ns in zip(frame["name"], took, called, strict=True)
    ]
    frame[["from", "to"]] = frame[["from", "to"]] / 1e3
    return frame


def _draw(events: pd.DataFrame, chosen: int) -> altair.VConcatChart:
    import altair as alt

    picked = alt.selection_point(name="picked", fields=["id"], on="click", value=[{"id": chosen}], empty=False)
    data = csv_data(events)
    colour = alt.when(picked).then(alt.value(CHOSEN)).when(IS_CHILD).then(alt.value(CHILD)).otherwise(alt.value(OTHER))
    x = alt.X(
        "from:Q",
        title=HOW,
        scale=alt.Scale(domain=[0, float(events["to"].max())], nice=False),
        axis=alt.Axis(tickCount=8),
    )
    rows = alt.Y("depth:O", title=None, axis=alt.Axis(domain=False, ticks=False, labels=False))
    bars = (
        alt.Chart(data, width=PAGE_WIDTH - 40, height=ROW * (int(events["depth"].max()) + 1))
        .mark_bar(clip=True, height=ROW - 6, cursor="pointer")
        .encode(x, rows, x2="to", color=colour, tooltip=[alt.Tooltip("says:N", title=" ")])
        .add_params(picked, zoom("x"))
        .properties(name="events")
    )
    told = (
        alt.Chart(data, width=PAGE_WIDTH - 40, height=ROW)
        .transform_filter(picked)
        .mark_text(align="left", x=0, y=ROW / 2, fontSize=13, color=INK)
        .encode(text="says:N")
    )
    return alt.vconcat(told, bars, spacing=4)
