"""Charts of recorded runs (record_run): requests, steps, and gaps between tokens; several runs share their axes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from roseinfer.display.chart import INK, PAGE_WIDTH, SEAM, Chart, csv_data
from roseinfer.display.figure import PALETTE

from ..measure.request_run import DECODE, PROMPT, RECOMPUTED, Run

if TYPE_CHECKING:
    import altair

WAITING, STALLED, PREEMPTED, EMPTY = "waiting", "stalled", "preempted", "empty slot"
COLOURS = {
    WAITING: "#BBBBBB",
    PROMPT: "#E69F00",
    DECODE: "#0072B2",
    STALLED: "#56B4E9",
    PREEMPTED: "#CC79A7",
    RECOMPUTED: "#D55E00",
    EMPTY: "#BBBBBB",
}
COMPUTED = (DECODE, RECOMPUTED, PROMPT)  # from the bottom of a step's bar up
WIDTH = PAGE_WIDTH - 110
LANES_HEIGHT = 320  # of a run's requests at most
LANE = 16  # of a request, if there are few
SLOT = 22
STEPS_HEIGHT = 120
DIGITS = 6
SPAN_TIPS = ["request:O", "kind:N", "begin:Q", "end:Q", "tokens:Q"]
TIME = {"steps": "step", "model": "time of the clock", "seconds": "seconds"}  # of an axis, by a run's clock
# Of a gap, by a run's clock: its unit, and how many of these are 1 of the clock.
GAP = {"steps": ("steps", 1), "model": ("on the clock", 1), "seconds": ("ms", 1e3)}


class Span(NamedTuple):
    """Part of a request's life. tokens: how many were computed in it, 0 while the request stands still."""

    request: int
    kind: str
    begin: float
    end: float
    tokens: int


def spans_of(run: Run, request: int) -> list[Span]:
    """List a request's life without gaps, from its arrival to its last token.

    Decode steps in a row are one span, and so is each chunk of a prompt. Stalled: it runs, and a step went by without
    it.
    """
    own = run.requests[request]
    spans: list[Span] = []
    at, before = own.times.arrival, None
    for number, row in run.rows_of(request):
        times = run.steps[number].times
        begin = at
        if before != number - 1 and times.scheduled > at:
            begin = times.scheduled
            gave_back = any(at <= when <= begin for when in own.preempted)
            kind = WAITING if before is None else PREEMPTED if gave_back else STALLED
            spans.append(Span(request, kind, at, begin, 0))
        last = spans[-1] if spans else None
        if last and last.kind == row.kind == DECODE:
            spans[-1] = last._replace(end=times.finish, tokens=last.tokens + row.num_new)
        else:
            spans.append(Span(request, row.kind, begin, times.finish, row.num_new))
        at, before = times.finish, number
    return spans


def draw_requests(*runs: Run) -> Chart:
    """Chart a line per request: where it waits, computes its prompt, decodes or stands still (thin)."""
    import altair as alt
    import pandas as pd

    def panel(run: Run) -> Any:
        spans = [span for request in range(len(run.requests)) for span in spans_of(run, request)]
        frame = pd.DataFrame(spans, columns=Span._fields).round(DIGITS)
        lane = min(LANE, LANES_HEIGHT / len(run.requests))
        bars = alt.Chart(csv_data(frame)).encode(
            x=_time(runs, "begin", run),
            x2="end:Q",
            y=alt.Y("request:O", title="request", axis=alt.Axis(labelOverlap=True)),
            color=span_colours([kind for kind in COLOURS if _shown(runs, kind)]),
            tooltip=SPAN_TIPS,
        )
        return _thin_and_thick(bars, 0.3 * lane, 0.75 * lane).properties(height=lane * len(run.requests))

    return _chart(runs, panel, _requests_text)


def slots_of(run: Run) -> list[list[Span]]:
    """List what is in each slot from the run's beginning to its end: requests, and times in which it is empty.

    A request takes the first free slot with its prompt, and keeps it until its last token.
    """
    slots: list[list[Span]] = []
    stays = [[span for span in spans_of(run, request) if span.kind != WAITING] for request in range(len(run.requests))]
    for spans in sorted(stays, key=lambda spans: spans[0].begin):
        own = next((slot for slot in slots if slot[-1].end <= spans[0].begin), None)
        if own is None:
            slots.append(own := [])
        own += [*_gap(own, spans[0].begin), *spans]
    return [[*slot, *_gap(slot, run.end)] for slot in slots]


def _gap(slot: list[Span], end: float) -> list[Span]:
    """Return the time for which a slot is empty until `end`, as one span, or none."""
    begin = slot[-1].end if slot else 0
    return [Span(-1, EMPTY, begin, end, 0)] if begin < end else []


def draw_slots(*runs: Run) -> Chart:
    """Chart a line per slot: its requests, by their numbers, and where it stays empty (thin)."""
    import altair as alt
    import pandas as pd

    def panel(run: Run) -> Any:
        slots = slots_of(run)
        rows = [(number, *span) for number, slot in enumerate(slots) for span in slot]
        frame = pd.DataFrame(rows, columns=["slot", *Span._fields]).round(DIGITS)
        frame["middle"] = (frame["begin"] + frame["end"]) / 2
        base = alt.Chart(csv_data(frame)).encode(y=alt.Y("slot:O", title="slot"), tooltip=SPAN_TIPS)
        kinds = [kind for kind in COLOURS if kind == EMPTY or kind != WAITING and _shown(runs, kind)]
        bars = base.encode(x=_time(runs, "begin", run), x2="end:Q", color=span_colours(kinds))
        has_room = f"datum.kind == '{DECODE}' && {WIDTH} * (datum.end - datum.begin) > {2 * SLOT * _end(runs)}"
        names = base.transform_filter(has_room).mark_text(color="white").encode(x="middle:Q", text="request:N")
        return (_thin_and_thick(bars, 0.3 * SLOT, 0.8 * SLOT) + names).properties(height=SLOT * len(slots))

    return _chart(runs, panel, _slots_text)


def draw_steps(*runs: Run) -> Chart:
    """Chart a bar per step: how many tokens of each kind it computed. The line is the budget."""
    import altair as alt
    import pandas as pd

    def panel(run: Run) -> Any:
        most = max(step.num_tokens for each in runs for step in each.steps)
        last = max(len(each.steps) for each in runs)
        rows = [
            (number, kind, tokens, order)
            for number, step in enumerate(run.steps)
            for order, kind in enumerate(COMPUTED)
            if (tokens := step.tokens_of(kind))
        ]
        frame = pd.DataFrame(rows, columns=["step", "kind", "tokens", "order"])
        scale, axis = alt.Scale(domain=[0, most], nice=True), alt.Axis(tickCount=4)
        title = "step" if run is runs[-1] else None
        bars = (
            alt.Chart(csv_data(frame))
            .mark_bar(width=max(1.0, 0.8 * WIDTH / last))
            .encode(
                x=alt.X("step:Q", title=title, scale=alt.Scale(domain=[-0.5, last - 0.5], nice=False)),
                y=alt.Y("tokens:Q", title="tokens", stack="zero", scale=scale, axis=axis),
                order="order:Q",
                tooltip=["step:Q", "kind:N", "tokens:Q"],
                color=span_colours([kind for kind in COMPUTED if any(each.tokens_of(kind) for each in runs)]),
            )
        )
        layers = [bars]
        if run.budget is not None and run.budget <= 1.5 * most:
            line = alt.Chart(alt.Data(values=[{"budget": run.budget}])).mark_rule(color=INK, strokeDash=[4, 3])
            layers.append(line.encode(y="budget:Q", tooltip="budget:Q"))
        return alt.layer(*layers).properties(height=STEPS_HEIGHT)

    return _chart(runs, panel, _steps_text)


def draw_gaps(*runs: Run) -> Chart:
    """Chart a point per token: how long its request waited for it since the token before (ITL)."""
    import altair as alt
    import pandas as pd

    def panel(run: Run) -> Any:
        most = max((gap for each in runs for _, _, gap in _gaps(each)), default=1)
        frame = pd.DataFrame(_gaps(run), columns=["request", "at", "gap"]).round(DIGITS)
        scale, axis = alt.Scale(domain=[0, most], nice=True), alt.Axis(tickCount=4)
        points = alt.Chart(csv_data(frame)).mark_circle(size=28, opacity=0.7, color=PALETTE[0])
        return points.encode(
            x=_time(runs, "at", run),
            y=alt.Y("gap:Q", title=f"ITL ({GAP[run.clock][0]})", scale=scale, axis=axis),
            tooltip=["request:O", "at:Q", "gap:Q"],
        ).properties(height=STEPS_HEIGHT)

    return _chart(runs, panel, _gaps_text)


def _chart(runs: tuple[Run, ...], panel: Callable[[Run], Any], text: Callable[[Run], str]) -> Chart:
    """Draw a panel per run, one below the other, and write a line of text for each."""
    import altair as alt

    require_runs(runs)
    panels = [panel(run).properties(width=WIDTH, title=run.name) for run in runs]
    return Chart(alt.vconcat(*panels, spacing=8), "\n".join(f"{run.name}: {text(run)}" for run in runs))


def _thin_and_thick(bars: Any, thin: float, thick: float) -> Any:
    """Draw the spans in which a request stands still as thin bars, and those that compute as thick ones."""
    import altair as alt

    is_computed = alt.FieldOneOfPredicate(field="kind", oneOf=list(COMPUTED))
    seam = 0.5 if thick > 3 else 0
    return bars.transform_filter({"not": is_computed}).mark_bar(height=thin) + bars.transform_filter(
        is_computed
    ).mark_bar(height=thick, stroke=SEAM, strokeWidth=seam)


def require_runs(runs: tuple[Run, ...]) -> None:
    """Raise ValueError unless the runs can stand on one axis."""
    if not runs or not all(isinstance(run, Run) for run in runs):
        raise ValueError(f"runs must be at least one Run, as record_run gives it, got {runs!r}")
    if len({run.clock for run in runs}) > 1:
        raise ValueError(f"runs must be by one clock to stand on one axis, got {', '.join(run.clock for run in runs)}")


def _time(runs: tuple[Run, ...], column: str, run: Run) -> altair.X:
    """Make the axis of times, which has its title below the last run."""
    import altair as alt

    title = TIME[run.clock] if run is runs[-1] else None
    return alt.X(f"{column}:Q", title=title, scale=alt.Scale(domain=[0, _end(runs)], nice=False))


def _end(runs: tuple[Run, ...]) -> float:
    return max(run.end for run in runs)


def span_colours(kinds: list[str]) -> altair.Color:
    import altair as alt

    scale = alt.Scale(domain=kinds, range=[COLOURS[kind] for kind in kinds])
    return alt.Color("kind:N", title=None, scale=scale, legend=alt.Legend(orient="top", symbolType="square"))


def _shown(runs: tuple[Run, ...], kind: str) -> bool:
    return any(span.kind == kind for run in runs for i in range(len(run.requests)) for span in spans_of(run, i))


def _gaps(run: Run) -> list[tuple[int, float, float]]:
    """List (request, when, how long after its last token, in GAP's unit) of every token but a request's first."""
    times = GAP[run.clock][1]
    return [
        (number, after.finish, times * (after.finish - before.finish))
        for number, request in enumerate(run.requests)
        for before, after in pairwise(request.times.steps)
    ]


def _requests_text(run: Run) -> str:
    """Say exact facts about the requests of a run; by the wall clock these are only how many requests and tokens."""
    made = f"{len(run.requests)} requests, {sum(map(len, run.outputs))} tokens"
    if run.clock == "seconds":
        return made + cold_text(run)
    spans = [span for request in range(len(run.requests)) for span in spans_of(run, request)]
    idle = sum(span.end - span.begin for span in spans if not span.tokens)
    return f"{made} by time {run.end}, {idle} spent waiting or stalled, {run.num_preemptions} preemptions"


def _slots_text(run: Run) -> str:
    slots = slots_of(run)
    if run.clock == "seconds":
        return f"{len(run.requests)} requests{cold_text(run)}"
    empty = sum(span.end - span.begin for slot in slots for span in slot if span.kind == EMPTY)
    told = f"{len(run.requests)} requests in {len(slots)} slots by time {run.end}"
    return f"{told}, and {empty / run.end / len(slots):.0%} of the slots' time empty"


def cold_text(run: Run) -> str:
    """Say how many graphs a run by the wall clock captured; "" if none."""
    return f", {run.num_captures} graphs captured meanwhile" if run.num_captures else ""


def _steps_text(run: Run) -> str:
    if run.clock == "seconds":
        return f"the tokens of its steps, {run.tokens_of(PROMPT)} of prompts among them{cold_text(run)}"
    kinds = ", ".join(f"{run.tokens_of(kind)} {kind}" for kind in COMPUTED if run.tokens_of(kind))
    return f"{len(run.steps)} steps, {kinds}, at most {max(step.num_tokens for step in run.steps)} in one"


def _gaps_text(run: Run) -> str:
    gaps = [gap for _, _, gap in _gaps(run)]
    if run.clock == "seconds":
        return f"{len(gaps)} gaps between tokens{cold_text(run)}"
    return f"{len(gaps)} gaps between tokens, the longest {max(gaps, default=0)} {GAP[run.clock][0]}"
