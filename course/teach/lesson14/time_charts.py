"""Pictures of the times in recorded runs: one request's own, steps by their size, and throughput against latency."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from roseinfer.display.chart import INK, PAGE_WIDTH, SEAM, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.display.labels import BESIDE, budget_labels

from ..measure.request_run import PROMPT, RECOMPUTED, Run, RunStep
from ..views.run_charts import TIME, WIDTH, cold_text, require_runs, span_colours, spans_of

if TYPE_CHECKING:
    import altair

MS = 1e3
LANE = 22
# p90 of a step, since in a short load most tokens come from steps without a prompt, whatever the budget. The longest
# ITL, since a short load has too few for a p99.
CURVES = {"latency": ("p90", "time of a step, p90 (ms)"), "itl": ("max", "longest ITL (ms)")}
WITH_PROMPT, REPLAYED, CAPTURED = "with a prompt", "decode only; replayed", "decode only; captures its graph"
LOOKS = {WITH_PROMPT: (PALETTE[1], "circle"), REPLAYED: (PALETTE[0], "triangle"), CAPTURED: (PALETTE[3], "cross")}
BEYOND = 1.15  # of the largest value, for what stands beside it
BUDGETS_WIDTH, BUDGETS_HEIGHT = PAGE_WIDTH // 2 - 90, 220


def draw_request_times(run: Run, request: int) -> Chart:
    """Draw a request's life, and below it each of its times from where it begins to where it ends."""
    import altair as alt
    import pandas as pd

    require_runs((run,))
    if not isinstance(request, int) or not 0 <= request < len(run.requests):
        raise ValueError(f"request must be a place among the arrivals, 0 to {len(run.requests) - 1}, got {request!r}")
    times = run.requests[request].times
    bars = [("waiting_time", times.arrival, times.first_scheduled), ("ttft", times.arrival, times.steps[0].finish)]
    bars += [("itl, each", before.finish, after.finish) for before, after in pairwise(times.steps)]
    if len(times.steps) > 1:
        bars.append(("tpot, their mean", times.steps[0].finish, times.steps[-1].finish))
    bars.append(("e2e_latency", times.arrival, times.steps[-1].finish))
    spans = spans_of(run, request)
    lanes = ["the request", *dict.fromkeys(name for name, *_ in bars)]
    y = alt.Y("lane:N", sort=lanes, title=None, scale=alt.Scale(domain=lanes))
    end = alt.Scale(domain=[times.arrival, times.steps[-1].finish], nice=False)
    x = alt.X("begin:Q", title=TIME[run.clock], scale=end)
    life = pd.DataFrame(
        [("the request", span.kind, span.begin, span.end) for span in spans], columns=["lane", "kind", "begin", "end"]
    )
    lived = (
        alt.Chart(csv_data(life))
        .mark_bar(height=0.7 * LANE, stroke=SEAM, strokeWidth=0.5)
        .encode(
            x,
            y,
            x2="end:Q",
            color=span_colours(list(dict.fromkeys(life["kind"]))),
            tooltip=["kind:N", "begin:Q", "end:Q"],
        )
    )
    frame = pd.DataFrame(bars, columns=["lane", "begin", "end"])
    frame["long"] = frame["end"] - frame["begin"]
    base = alt.Chart(csv_data(frame)).encode(x, y, tooltip=["lane:N", "begin:Q", "end:Q", "long:Q"])
    begins = base.mark_tick(color=INK, thickness=1.5, height=0.5 * LANE)
    brackets = base.mark_rule(color=INK, strokeWidth=1.5).encode(x2="end:Q") + begins
    ends = base.mark_tick(color=INK, thickness=1.5, height=0.5 * LANE).encode(x=alt.X("end:Q", scale=end))
    chart = alt.layer(lived, brackets, ends).properties(width=WIDTH, height=LANE * len(lanes), title=run.name)
    told = {name: long for name, long in zip(frame["lane"], frame["long"], strict=True) if name != "itl, each"}
    exact = ", ".join(f"{name} {_value(name, long, times.steps)}" for name, long in told.items())
    text = f"request {request} of {run.name}" + ("" if run.clock == "seconds" else f": {exact}")
    return Chart(chart, text)


def _value(name: str, long: float, steps: list[Any]) -> str:
    return f"{long / (len(steps) - 1):.3f}" if name.startswith("tpot") else str(long)


def draw_step_times(*runs: Run) -> Chart:
    """Draw one point per step: its tokens, and how long it took by the wall clock."""
    import altair as alt
    import pandas as pd

    require_runs(runs)
    points = pd.DataFrame(
        [
            (run.name, step.num_tokens, MS * (step.times.finish - step.times.scheduled), kind_of(step))
            for run in runs
            for step in run.steps
        ],
        columns=["run", "tokens", "ms", "step"],
    ).round(3)
    kinds = [kind for kind in LOOKS if (points["step"] == kind).any()]
    colours, shapes = ([LOOKS[kind][part] for kind in kinds] for part in (0, 1))
    colour = alt.Color(
        "step:N", title=None, legend=alt.Legend(orient="top"), scale=alt.Scale(domain=kinds, range=colours)
    )
    shape = alt.Shape("step:N", title=None, scale=alt.Scale(domain=kinds, range=shapes))
    chart = (
        alt.Chart(csv_data(points), width=WIDTH, height=220)
        .mark_point(filled=True, size=45, opacity=0.7)
        .encode(
            x=alt.X("tokens:Q", title="tokens of a step"),
            y=alt.Y("ms:Q", title="ms a step"),
            color=colour,
            shape=shape,
            tooltip=["run:N", "tokens:Q", "ms:Q", "step:N"],
        )
    )
    told = ", ".join(f"{run.name}{cold_text(run)}" for run in runs)
    return Chart(chart, f"how long steps took, by their tokens: {told}")


def kind_of(step: RunStep) -> str:
    if any(step.tokens_of(kind) for kind in (PROMPT, RECOMPUTED)):
        return WITH_PROMPT
    return CAPTURED if step.num_captures else REPLAYED


def draw_budgets(*runs: Run) -> Chart:
    """Draw throughput against latency, one point per run with its budget beside it. Better is to the right and down."""
    import altair as alt
    import pandas as pd

    require_runs(runs)
    rows = []
    for run in runs:
        metrics = run.metrics()
        rows.append({"budget": run.budget, "requests a second": _throughput(run)})
        rows[-1] |= {name: MS * metrics[name][stat] for name, (stat, _) in CURVES.items()}
    frame = pd.DataFrame(rows).round(3)
    frame = frame.sort_values("budget", ignore_index=True)
    panels, tips = [], [f"{name}:Q" for name in frame.columns]
    for name, (_, title) in CURVES.items():
        told = budget_labels(frame, "requests a second", name, (BUDGETS_WIDTH, BUDGETS_HEIGHT), BEYOND)
        base = alt.Chart(csv_data(told)).encode(
            x=alt.X("requests a second:Q", scale=_from_0(frame["requests a second"]), axis=alt.Axis(tickCount=5)),
            y=alt.Y(f"{name}:Q", title=title, scale=_from_0(frame[name])),
        )
        line = base.mark_line(strokeWidth=1.5, color=PALETTE[0]).encode(order="budget:Q")
        dots = base.mark_point(filled=True, size=60, opacity=1, color=PALETTE[0]).encode(tooltip=tips)
        panels.append(
            (line + dots + base.mark_text(fontSize=11, **BESIDE).encode(text="label:N")).properties(
                width=BUDGETS_WIDTH, height=BUDGETS_HEIGHT
            )
        )
    budgets = ", ".join(f"{run.budget}{cold_text(run)}" for run in runs)
    return Chart(alt.hconcat(*panels, title="Throughput and latency over token budgets"), f"budgets: {budgets}")


def _from_0(values: Any) -> altair.Scale:
    import altair as alt

    return alt.Scale(domain=[0, BEYOND * max(values)], nice=False)


def _throughput(run: Run) -> float:
    """Compute requests per second, from the first arrival to the last token."""
    return len(run.requests) / (run.end - run.requests[0].times.arrival)
