"""timeline: the lanes of a Trace, to be zoomed and panned in the browser, with the gaps named and summed.

The picture is made of <div>s alone, and the script only draws it anew for another range: JupyterLab takes scripts, and
all of SVG, out of a notebook that has been opened but not run, and the whole step can be read there still.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections import defaultdict

from roseinfer.display import Table
from roseinfer.profiling import Trace
from roseinfer.profiling.chrome import Slice
from roseinfer.profiling.trace import DEVICE_WORK, HOST_SPAN, SPAN_PREFIX

from .gaps import Gap, find_gaps
from .timeline import OTHER_COLOURS, SPAN_COLOURS, Lane, device_lanes, host_lanes, nesting, short_name  # fmt: skip
from .view import View, card
from .zoom_script import SCRIPT

OPS = ("cpu_op", "cuda_runtime", "cuda_driver")  # what the host does in C++; the rest of its time is Python's
WORK_COLOUR = "#888888"
RESOLUTION = 1 / 500  # of the width: ops that are nearer to each other are drawn as one bar in the static picture
LETTER_WIDTH = 0.009  # of the width: a bar has its name inside if it is wide enough for it
BAR = "position: absolute; top: 2px; height: 18px; overflow: hidden; white-space: nowrap; text-align: center"
ROW = "display: flex; align-items: center; gap: 8px; margin: 2px 0"
LABEL = "width: 11em; text-align: right; font-size: 12px"
TRACK = "position: relative; flex: 1; height: 22px; background: rgba(128, 128, 128, 0.15); overflow: hidden"
MOST_GAP_ROWS = 6
BETWEEN = "between spans"


def timeline(trace: Trace, steps: int = 1, prefix: str = SPAN_PREFIX) -> ZoomTimeline:
    """The host and device lanes of the first `steps` outermost spans that start with `prefix`, zoomable.

    text/plain: the host's lanes and the order of the spans in them, as Trace.timeline has it. Raises ValueError for
    anything but a Trace, one without such spans, or `steps` outside those it has.
    """
    if not isinstance(trace, Trace):
        raise ValueError(f"trace must be a Trace, as profiling.capture and Trace.load make, got {trace!r}")
    spans = [event for event in trace.slices if event.cat == HOST_SPAN and event.name.startswith(prefix)]
    if not spans:
        raise ValueError(f"prefix={prefix!r}: no host span of this trace starts with it")
    outermost = [span for span, depth in nesting(spans) if depth == 0]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= len(outermost):
        raise ValueError(f"steps must be an integer from 1 to {len(outermost)}, the steps in the trace; got {steps!r}")
    return ZoomTimeline(trace, outermost[:steps], prefix)


class ZoomTimeline(View):
    """What `timeline` returns. start, end: in ns, from the first step's begin to the last one's end."""

    def __init__(self, trace: Trace, steps: list[Slice], prefix: str) -> None:
        self.steps = len(steps)
        self.start, self.end = steps[0].ts, max(step.end for step in steps)
        self._caption = trace.caption
        self._thread = steps[0].pid, steps[0].tid
        self._prefix = prefix
        self._window = [event for event in trace.slices if self.start <= event.ts < self.end]
        self.host, self.device = host_lanes(self._window, prefix), device_lanes(self._window, prefix)

    def __repr__(self) -> str:
        lanes = [f"{lane.label:12}  {_contents(lane)}" for lane in self.host]
        return "\n".join([f"Timeline of {self._steps}", *lanes])

    def to_html(self) -> str:
        return card(f"{self._heading()}{self._lanes()}{self._legend()}{self._gap_tables()}{self._script()}")

    @property
    def host_gaps(self) -> list[Gap]:
        """When the thread of the steps was in no op, each named after the innermost span around it."""
        on_thread = [event for event in self._window if (event.pid, event.tid) == self._thread]
        spans = [event for event in on_thread if self._is_span(event)]
        return find_gaps([event for event in on_thread if event.cat in OPS], spans, self.start, self.end)

    @property
    def device_gaps(self) -> list[Gap]:
        """When no kernel and no memory copy ran, each named after the innermost op or span of the host."""
        if not self.device:
            return []
        on_thread = [event for event in self._window if (event.pid, event.tid) == self._thread]
        host = [event for event in on_thread if event.cat == "cpu_op" or self._is_span(event)]
        work = [event for event in self._window if event.cat in DEVICE_WORK]
        return find_gaps(work, host, self.start, self.end)

    def says(self) -> list[str]:
        """The gaps in a sentence for each side: their share of the time, and where the longest one was."""
        sentences = [self._sentence("Python (the host in no op)", self.host_gaps, "inside")]
        if self.device:
            sentences.append(self._sentence("device idle", self.device_gaps, "under"))
        return sentences

    @property
    def _steps(self) -> str:
        return f"{self.steps} step{'s' if self.steps > 1 else ''}"

    def _is_span(self, event: Slice) -> bool:
        return event.cat == HOST_SPAN and event.name.startswith(self._prefix)

    def _sentence(self, what: str, gaps: list[Gap], where: str) -> str:
        whole = "the step" if self.steps == 1 else f"the {self.steps} steps"
        share = sum(gap.dur for gap in gaps) / (self.end - self.start)
        sentence = f"{what} {share:.0%} of {whole}"
        if not gaps:
            return sentence
        longest = max(gaps, key=lambda gap: gap.dur)
        place = f"{where} {_doing(longest)}" if longest.during else BETWEEN
        return f"{sentence}, longest gap {longest.dur / 1e6:.3f} ms {place}"

    def _heading(self) -> str:
        sentences = "".join(f"<div>{html.escape(sentence)}</div>" for sentence in self.says())
        return (
            f"<p><b>Timeline of {self._steps}</b>, {(self.end - self.start) / 1e6:.3f} ms "
            f"<span class='rose-muted'>{html.escape(self._caption)}</span></p>{sentences}"
        )

    def _lanes(self) -> str:
        colours = self._colours()
        rows = "".join(
            f'<div style="{ROW}"><span style="{LABEL}">{html.escape(lane.label)}</span>'
            f'<div class="rose-track" style="{TRACK}">{self._bars(lane, colours)}</div></div>'
            for lane in self.host + self.device
        )
        if not self.device:
            rows += f'<div style="{ROW}"><span style="{LABEL}">device</span><span>none in this trace</span></div>'
        ends = f"<span>0 ms</span><span>{(self.end - self.start) / 1e6:.3f} ms</span>"
        axis = "flex: 1; display: flex; justify-content: space-between; font-size: 12px"
        label = html.escape(f"{self!r}. {'. '.join(self.says())}", quote=True)
        return (
            f'<div class="{self._id}" role="img" aria-label="{label}" style="max-width: 1000px; margin: 8px 0">{rows}'
            f'<div style="{ROW}"><span style="{LABEL}"></span>'
            f'<div class="rose-axis" style="{axis}">{ends}</div></div></div>'
        )

    def _bars(self, lane: Lane, colours: dict[str, str]) -> str:
        whole = self.end - self.start
        stays = [(e.ts, e.end, e.name) for e in lane.slices] if lane.named else _joined(lane.slices, whole * RESOLUTION)
        bars = []
        for start, end, name in stays:
            left, width = (start - self.start) / whole, (end - start) / whole
            text = html.escape(short_name(name)) if width > LETTER_WIDTH * len(short_name(name)) else ""
            style = f"left: {100 * left:.2f}%; width: {100 * max(width, 0.001):.2f}%; {_paint(colours.get(name))}"
            bars.append(f'<div style="{BAR}; {style}">{text}</div>')
        return "".join(bars)

    def _legend(self) -> str:
        entries = [*self._colours().items(), ("an op, a kernel or a copy", WORK_COLOUR)]
        box = "padding: 1px 7px; margin-right: 4px"
        spans = (f'<span style="{box}; {_paint(c)}">{html.escape(short_name(name))}</span>' for name, c in entries)
        return f"<p>{' '.join(spans)}</p>"

    def _gap_tables(self) -> str:
        whole = self.end - self.start
        tables = [_table("Where the host was in no op", self.host_gaps, whole)]
        if self.device:
            tables.append(_table("What the host did while the device was idle", self.device_gaps, whole))
        return f"<details><summary>All gaps, summed by name</summary>{''.join(tables)}</details>"

    def _colours(self) -> dict[str, str]:
        names = dict.fromkeys(e.name for lane in self.host + self.device if lane.named for e in lane.slices)
        others = [name for name in names if name not in SPAN_COLOURS]
        return {n: SPAN_COLOURS.get(n) or OTHER_COLOURS[others.index(n) % len(OTHER_COLOURS)] for n in names}

    def _script(self) -> str:
        # "</" would end the script element, whatever string it stands in.
        return f"<script>({SCRIPT})({json.dumps(self._id)}, {self._data().replace('</', '<' + chr(92) + '/')})</script>"

    def _data(self) -> str:
        names: dict[str, int] = {}
        lanes = [
            {
                "named": lane.named,
                "bars": [[e.ts - self.start, e.dur, names.setdefault(e.name, len(names))] for e in lane.slices],
            }
            for lane in self.host + self.device
        ]
        colours = self._colours()
        paints = [_paint(colours.get(name)) for name in names]
        data = {"whole": self.end - self.start, "lanes": lanes, "names": list(names), "paints": paints, "bar": BAR}
        return json.dumps(data, separators=(",", ":"))

    @property
    def _id(self) -> str:
        return f"rose-zoom-{hashlib.sha256(self._data().encode()).hexdigest()[:12]}"


def _joined(slices: list[Slice], nearer: float) -> list[tuple[int, int, str]]:
    """(start, end, "") of runs of slices with less than `nearer` ns between them."""
    runs: list[tuple[int, int, str]] = []
    for event in slices:
        if runs and event.ts - runs[-1][1] < nearer:
            runs[-1] = (runs[-1][0], max(runs[-1][1], event.end), "")
        else:
            runs.append((event.ts, event.end, ""))
    return runs


def _contents(lane: Lane) -> str:
    return ", ".join(dict.fromkeys(short_name(e.name) for e in lane.slices)) if lane.named else "bars"


def _doing(gap: Gap) -> str:
    return short_name(gap.during.name) if gap.during else BETWEEN


def _table(title: str, gaps: list[Gap], whole: int) -> str:
    import pandas as pd

    sums: dict[str, list[int]] = defaultdict(list)
    for gap in gaps:
        sums[_doing(gap)].append(gap.dur)
    rows = [(name, len(d), sum(d) / 1e6, max(d) / 1e6, sum(d) / whole) for name, d in sums.items()]
    columns = ["during", "gaps", "total ms", "longest ms", "of the time"]
    frame = pd.DataFrame(sorted(rows, key=lambda row: -row[2])[:MOST_GAP_ROWS], columns=columns)
    note = f"the {MOST_GAP_ROWS} largest of {len(rows)}" if len(rows) > MOST_GAP_ROWS else ""
    shares = {"of the time": "{:.1%}"}
    return Table(frame, exact=columns, title=title, note=note, formats=shares, bars=list(shares)).to_html()


def _paint(colour: str | None) -> str:
    """Dark text on the palette's colours, on either of JupyterLab's themes."""
    return f"background-color: {colour or WORK_COLOUR}; color: #111111; font-size: 12px"
