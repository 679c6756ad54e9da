"""timeline: who ran when in a Trace, on the host and on the device, and what the gaps between were spent on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from heapq import nlargest
from itertools import cycle
from typing import TYPE_CHECKING, Any

from roseinfer.profiling import Trace
from roseinfer.profiling.traces.chrome import Slice
from roseinfer.profiling.traces.trace import DEVICE_WORK, HOST_SPAN, SPAN_PREFIX

from ..chart import PAGE_WIDTH, Chart, csv_data, zoom
from ..figure import INK
from .coverage import coverage
from .gaps import BETWEEN, Gap, find_gaps
from .lanes import Lane, device_lanes, host_lanes, nesting, short_names

if TYPE_CHECKING:
    import altair

# Of Okabe and Ito's palette. The course's own spans keep one colour in every notebook.
SPAN_COLOURS = {
    "roseinfer.decode_step_sessions.total": "#BBBBBB",
    "roseinfer.decode_step_sessions.build_batched_past": "#E69F00",
    "roseinfer.decode_step_sessions.build_block_tables": "#F0E442",
    "roseinfer.decode_step_sessions.h2d_block_tables": "#CC79A7",
    "roseinfer.model.forward": "#56B4E9",
    "roseinfer.kv.append_token": "#009E73",
}
OTHER_COLOURS = ("#D55E00", "#0072B2", "#CC79A7", "#F0E442", "#E69F00", "#56B4E9", "#009E73")
WORK, WORK_COLOUR, BETWEEN_COLOUR = "op, kernel or copy", "#888888", "#DDDDDD"
OPS = ("cpu_op", "cuda_runtime", "cuda_driver")  # what the host does in C++; the rest of its time is Python's
LABELS, LANE, GAP_ROW = 150, 26, 20  # pixels: the width of the lanes' names, the heights of a lane and of a sum
BARS_WIDTH = PAGE_WIDTH - LABELS - 20
MOST_BARS = 2000  # in a lane; of more the shortest are left out
APART = 200  # as many bars in view can be told apart; of more a lane shows, by columns, the share that they cover
COLUMN = 2  # pixels
MOST_GAP_ROWS = 6
LEFT = "max(scale('lanes_x', datum.from), 0)"  # of the part of a bar that is shown, in pixels
ROOM = f"(scale('lanes_x', datum.to) - {LEFT} - 6)"
IN_VIEW = "span(domain('lanes_x'))"  # ms
SHARE = "(isValid(datum.share) ? datum.share : 1)"
HOW = "ms since the step began (drag to move, Ctrl + wheel to zoom, double click for all)"


def timeline(trace: Trace, steps: int = 1, prefix: str = SPAN_PREFIX) -> Timeline:
    """Draw the host's and the device's lanes while steps run; zoom and pan with the mouse.

    Args:
        trace: from capture.
        steps: number of steps to show, from the first one.
        prefix: how the name of a step's outermost span begins.

    Its text/plain has the host's lanes and the order of their spans, which are the same on every machine.
    Raises ValueError for anything but a Trace, for one without such spans, and for `steps` outside 1 to those it has.
    """
    if not isinstance(trace, Trace):
        raise ValueError(f"trace must be a Trace, as profiling.capture and Trace.load make, got {trace!r}")
    trace.require_spans(prefix)
    spans = [event for event in trace.slices if event.cat == HOST_SPAN and event.name.startswith(prefix)]
    outermost = [span for span, depth in nesting(spans) if depth == 0]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= len(outermost):
        raise ValueError(f"steps must be an integer from 1 to {len(outermost)}, the steps in the trace; got {steps!r}")
    return Timeline(trace, outermost[:steps], prefix)


class Timeline(Chart):
    """Timeline of a trace's steps.

    start, end: in ns, from the first step's begin to the last one's end.
    bars: all that is drawn, a row each: the number of its lane, its name, begin and end in ms since start.
    shades: what a crowded lane shows until one zooms in: rows like bars, with the name that covers most of each column,
    and the covered share.
    host_gaps: when the thread of the steps was in no op, each named after the innermost span around it.
    device_gaps: when no kernel and no memory copy ran, each named after the innermost op or span of the host.
    """

    def __init__(self, trace: Trace, steps: list[Slice], prefix: str) -> None:
        self.start, self.end = steps[0].ts, max(step.end for step in steps)
        self.steps = f"{len(steps)} step{'s' if len(steps) > 1 else ''}"
        window = [e for e in trace.slices if self.start <= e.ts < self.end]
        self.host, self.device = host_lanes(window, prefix), device_lanes(window, prefix)

        on_thread = [e for e in window if (e.pid, e.tid) == (steps[0].pid, steps[0].tid)]
        ops = [e for e in on_thread if e.cat in OPS]
        spans = [e for e in on_thread if e.cat == HOST_SPAN and e.name.startswith(prefix)]
        self.host_gaps = find_gaps(ops, spans, self.start, self.end)
        around = [e for e in on_thread if e.cat == "cpu_op" or e.cat == HOST_SPAN and e.name.startswith(prefix)]
        work = [e for e in window if e.cat in DEVICE_WORK]
        self.device_gaps = find_gaps(work, around, self.start, self.end) if work else []

        lanes = [*self.host, *self.device]
        gaps = [*self.host_gaps, *self.device_gaps]
        self.short = short_names(e.name for events in (*(lane.slices for lane in lanes), gaps) for e in events)
        text = "\n".join([f"Timeline of {self.steps}", *(lane.text(self.short) for lane in self.host)])
        device = "\n".join(lane.text(self.short) for lane in self.device) or "no device in this trace"
        super().__init__(self._draw(trace.caption), text, "\n".join([text, device, *self.says()]))

    def says(self) -> list[str]:
        """Tell in a sentence for each side how much of the time gaps took, and where the longest one was."""
        sentences = [self._sentence("Python (the host in no op)", self.host_gaps, "inside")]
        if self.device:
            sentences.append(self._sentence("device idle", self.device_gaps, "under"))
        return sentences

    def _sentence(self, what: str, gaps: list[Gap], where: str) -> str:
        whole = "the step" if self.steps == "1 step" else f"the {self.steps}"
        sentence = f"{what} {sum(gap.dur for gap in gaps) / (self.end - self.start):.0%} of {whole}"
        if not gaps:
            return sentence
        longest = max(gaps, key=lambda gap: gap.dur)
        place = f"{where} {self.short[longest.name]}" if longest.during else BETWEEN
        return f"{sentence}, longest gap {longest.dur / 1e6:.3f} ms {place}"

    def _draw(self, caption: str) -> altair.VConcatChart:
        import altair as alt

        heading = f"Timeline of {self.steps}, {(self.end - self.start) / 1e6:.3f} ms"
        panels = [self._lanes().properties(name="lanes", title=alt.Title(heading, subtitle=caption))]
        for sentence, gaps in zip(self.says(), (self.host_gaps, self.device_gaps), strict=False):
            panels.append(self._sums(gaps).properties(title=alt.Title(sentence, fontWeight="normal")))
        return alt.vconcat(*panels, spacing=16).resolve_scale(color="independent")

    def _lanes(self) -> altair.LayerChart:
        import altair as alt
        import pandas as pd

        lanes = [*self.host, Lane("host: no op", self.host_gaps, False), *self.device]
        lanes += [Lane("device: idle", self.device_gaps, False)] if self.device else []
        rows: list[tuple[Any, ...]] = []
        for i, lane in enumerate(lanes):
            drawn: list[Any] = nlargest(MOST_BARS, lane.slices, key=lambda event: event.dur)
            rows += [(i, event.name, event.ts, event.end, None) for event in drawn]
        crowded = [i for i, lane in enumerate(lanes) if not lane.named and len(lane.slices) > APART]
        for i in crowded:
            columns = coverage(lanes[i].slices, self.start, self.end, BARS_WIDTH // COLUMN)
            rows += [(i, column.name, column.ts, column.end, round(column.share, 2)) for column in columns]
        frame = pd.DataFrame(rows, columns=["lane", "name", "from", "to", "share"]).astype({"share": float})
        frame[["from", "to"]] = ((frame[["from", "to"]] - self.start) / 1e6).round(4)
        self.bars, self.shades = frame[frame["share"].isna()].drop(columns="share"), frame.dropna()
        numbers, names = pd.factorize(frame["name"])
        colours = self._colours()
        as_colour = [name if name in colours else WORK for name in names]

        whole = (self.end - self.start) / 1e6
        near = [whole * APART / len(lane.slices) if i in crowded else 1e12 for i, lane in enumerate(lanes)]
        as_bars = f"({IN_VIEW} <= {near}[datum.lane])"
        data = csv_data(frame.assign(name=numbers))
        bars = (
            alt.Chart(data, width=BARS_WIDTH, height=LANE * len(lanes))
            .transform_calculate(
                full=_item(names, "name"),
                short=_item((self.short[name] for name in names), "name"),
                colour=_item(as_colour, "name"),
                took=f"(datum.to - datum.from) * {SHARE}",
            )
            .encode(y=_rows("lane:O", labelExpr=_item((lane.label for lane in lanes), "value")))
        )
        x = alt.X("from:Q", title=HOW, scale=alt.Scale(domain=[0, whole], nice=False))
        palette = alt.Scale(domain=list(colours), range=list(colours.values()))
        shown = json.dumps({name: self.short.get(name, name) for name in colours})
        legend = alt.Legend(title=None, orient="bottom", columns=3, labelExpr=f"{shown}[datum.label]")
        times = [alt.Tooltip(f"{field}:Q", title=f"{field} ms", format=".4f") for field in ("from", "took")]
        # What is not in turn has no height: if it were transparent, it would still answer the mouse.
        height = alt.expr(f"isValid(datum.share) == {as_bars} ? 0 : {LANE - 6}")
        blocks = bars.mark_bar(clip=True, height=height, opacity=alt.expr(SHARE)).encode(
            x,
            x2="to",
            color=alt.Color("colour:N", scale=palette, legend=legend),
            tooltip=[alt.Tooltip("full:N", title="name"), *times],
        )
        spans = [i for i, lane in enumerate(lanes) if lane.named]
        named = bars.transform_filter(alt.FieldOneOfPredicate("lane", spans)).mark_text(
            color=INK,
            x=alt.expr(LEFT),
            align="left",
            dx=3,
            limit=alt.expr(ROOM),
            opacity=alt.expr(f"{ROOM} < 24 ? 0 : 1"),
        )
        return blocks.properties(name="bars").add_params(zoom("x")) + named.encode(text="short:N")

    def _sums(self, gaps: list[Gap]) -> altair.LayerChart:
        """Draw a bar for each name that gaps have, as long as all of them together."""
        import altair as alt
        import pandas as pd

        frame = pd.DataFrame([(gap.name, gap.dur) for gap in gaps], columns=["name", "dur"])
        sums = frame.groupby("name")["dur"].agg(["count", "sum", "max"]).sort_values("sum", ascending=False)
        whole, colours = self.end - self.start, self._colours()
        rows = [
            {
                "name": self.short[name],
                "colour": colours.get(name, WORK_COLOUR),
                "share": total / whole,
                "sum": f"{total / whole:.1%}: {total / 1e6:.3f} ms; gaps: {count:,}, longest {longest / 1e6:.3f} ms",
            }
            for name, count, total, longest in sums.head(MOST_GAP_ROWS).itertuples()
        ]
        x = alt.X("share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5))
        chart = alt.Chart(alt.Data(values=rows), width=BARS_WIDTH, height=GAP_ROW * len(rows))
        chart = chart.encode(x, _rows("name:N"), tooltip=["name:N", "sum:N"])
        texts = chart.mark_text(align="left", dx=6).encode(x=alt.value(0), text="sum:N")  # over the bar, if it is long
        return chart.mark_bar(opacity=0.45).encode(color=alt.Color("colour:N", scale=None)) + texts

    def _colours(self) -> dict[str, str]:
        names = dict.fromkeys(e.name for lane in self.host + self.device if lane.named for e in lane.slices)
        others = cycle(OTHER_COLOURS)
        spans = {name: SPAN_COLOURS.get(name) or next(others) for name in names}
        return spans | {WORK: WORK_COLOUR, BETWEEN: BETWEEN_COLOUR}


def _item(texts: Iterable[str], field: str) -> str:
    """Vega expression of the text whose number is a datum's field."""
    return f"{json.dumps(list(texts))}[datum.{field}]"


def _rows(field: str, **axis: Any) -> altair.Y:
    """Rows with their names on the left, which take the same room in every panel."""
    import altair as alt

    axis |= {"minExtent": LABELS, "maxExtent": LABELS, "domain": False, "ticks": False}
    return alt.Y(field, title=None, sort=None, axis=alt.Axis(**axis))
