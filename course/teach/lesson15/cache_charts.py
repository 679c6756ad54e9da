"""Charts of prefix caches: how much is found in pools of different sizes, and when first tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roseinfer.bench.workload import Work
from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model

from ..measure.request_run import Run, record_run
from ..views.lines_chart import draw_lines
from ..views.run_charts import DIGITS, GAP, TIME, cold_text

WIDTH, HEIGHT = PAGE_WIDTH - 150, 220


def draw_hit_rates(
    caches: Sequence[type[Any]], model: Model, work: Work, num_blocks: Sequence[int], **sizes: int
) -> Chart:
    """Draw the share of tokens that each cache finds, over the number of blocks in its pool.

    caches: stages as PrefixCache is, a line for each. sizes: as the stages take them. Raises
    ValueError for no size of a pool, and as record_run.
    """
    if not num_blocks:
        raise ValueError("num_blocks must be at least one size of a pool, got none")
    lines: dict[str, list[float]] = {}
    told = []
    for cache in caches:
        stages = [cache(model, num_blocks=n, **sizes) for n in num_blocks]
        for stage in stages:
            record_run(stage, work)
        lines[cache.name] = [100 * stage.num_found_tokens / stage.num_asked_tokens for stage in stages]
        facts = (
            f"{stage.num_found_tokens:,} of {stage.num_asked_tokens:,} found with {n}"
            for stage, n in zip(stages, num_blocks, strict=True)
        )
        told.append(f"{cache.name}: {', '.join(facts)}")
    return draw_lines("\n".join(told), num_blocks, lines, "blocks in the pool", "tokens found, %")


def draw_first_tokens(*runs: Run) -> Chart:
    """Draw each request's time to first token (TTFT), log axis, over its arrival, with a line across at the median."""
    import altair as alt
    import pandas as pd

    if len({run.clock for run in runs}) != 1:
        raise ValueError(f"runs must be one or more by the same clock, got {[run.clock for run in runs]}")
    unit, times = GAP[runs[0].clock]
    rows = [
        (run.name, request.times.arrival, times * (request.times.steps[0].finish - request.times.arrival))
        for run in runs
        for request in run.requests
    ]
    frame = pd.DataFrame(rows, columns=["run", "arrival", "ttft"]).round(DIGITS)
    names = [run.name for run in runs]
    base = alt.Chart(csv_data(frame)).encode(
        y=alt.Y("ttft:Q", title=f"TTFT ({unit})", scale=alt.Scale(type="log")),
        color=alt.Color(
            "run:N",
            title=None,
            scale=alt.Scale(domain=names, range=list(PALETTE[: len(names)])),
            legend=alt.Legend(orient="top"),
        ),
    )
    points = base.mark_point(filled=True, size=45).encode(
        x=alt.X("arrival:Q", title=f"arrival ({TIME[runs[0].clock]})"),
        tooltip=["run:N", "arrival:Q", "ttft:Q"],
        shape=alt.Shape("run:N", title=None, scale=alt.Scale(domain=names)),
    )
    medians = base.mark_rule(strokeDash=[4, 3]).encode(y="median(ttft):Q")
    text = "\n".join(_first_tokens_text(run) for run in runs)
    return Chart((medians + points).properties(width=WIDTH, height=HEIGHT), text)


def _first_tokens_text(run: Run) -> str:
    """Describe the chart by exact facts: by the wall clock, only the number of requests."""
    first = f"{run.name}: first tokens of {len(run.requests)} requests"
    ttft = run.metrics()["ttft"]
    if run.clock == "seconds":
        return first + cold_text(run)
    return f"{first}, half of them after {ttft['p50']}, all after {ttft['max']}"
