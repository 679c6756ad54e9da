"""Pictures of the times in recorded runs: steps by their size, and throughput against latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.display.labels import BESIDE, budget_labels

from ..measure.request_run import PROMPT, RECOMPUTED, Run, RunStep
from ..views.run_charts import WIDTH, cold_text, require_runs

if TYPE_CHECKING:
    import altair

MS = 1e3
# p90 of a step, since in a short load most tokens come from steps without a prompt, whatever the budget. The longest
# ITL, since a short load has too few for a p99.
CURVES = {"latency": ("p90", "time of a step, p90 (ms)"), "itl": ("max", "longest ITL (ms)")}
WITH_PROMPT, REPLAYED, CAPTURED = "with a prompt", "decode only; replayed", "decode only; captures its graph"
LOOKS = {WITH_PROMPT: (PALETTE[1], "circle"), REPLAYED: (PALETTE[0], "triangle"), CAPTURED: (PALETTE[3], "cross")}
BEYOND = 1.15  # of the largest value, for what stands beside it
BUDGETS_WIDTH, BUDGETS_HEIGHT = PAGE_WIDTH // 2 - 90, 220


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
