"""Charts of prefix caches: how much is found in pools of different sizes, and when first tokens come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roseinfer.bench.workload import Work
from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model

from ..measure.request_run import Run, record_run
from ..views.run_charts import DIGITS, GAP, TIME, cold_text

WIDTH, HEIGHT = PAGE_WIDTH - 150, 220


def draw_hit_rates(
    caches: Sequence[type[Any]], model: Model, works: Mapping[str, Work] | Work, num_blocks: Sequence[int], **sizes: int
) -> Chart:
    """Draw the share of tokens that each cache finds, over the number of blocks in its pool.

    caches: stages as PrefixCache is, a line for each. works: one, or several by name, a line for each of them.
    sizes: as the stages take them. Raises ValueError for no size of a pool, and as record_run.
    """
    import altair as alt
    import pandas as pd

    if not num_blocks:
        raise ValueError("num_blocks must be at least one size of a pool, got none")
    if not isinstance(works, Mapping):
        works = {"": works}
    rows = []
    for cache in caches:
        for name, work in works.items():
            line = ", ".join(filter(None, (cache.name if len(caches) > 1 or not name else "", name)))
            for n in num_blocks:
                stage = cache(model, num_blocks=n, **sizes)
                record_run(stage, work)
                rows.append((line, n, stage.num_found_tokens, stage.num_asked_tokens))
    frame = pd.DataFrame(rows, columns=["line", "blocks", "found", "asked"])
    frame["share"] = (frame["found"] / frame["asked"]).round(4)
    names = list(dict.fromkeys(frame["line"]))
    scale = alt.Scale(domain=names, range=list(PALETTE[: len(names)]))
    legend = alt.Legend(orient="top") if len(names) > 1 else None
    lines = (
        alt.Chart(csv_data(frame))
        .mark_line(point={"size": 45, "filled": True})
        .encode(
            x=alt.X("blocks:Q", title="blocks in the pool", scale=alt.Scale(zero=False, nice=False, padding=12)),
            y=alt.Y("share:Q", title="tokens found", axis=alt.Axis(format="%", tickCount=6)),
            color=alt.Color("line:N", title=None, scale=scale, legend=legend),
            strokeDash=alt.StrokeDash("line:N", title=None, scale=alt.Scale(domain=names), legend=legend),
            tooltip=["line:N", "blocks:Q", "found:Q", "asked:Q"],
        )
    )
    text = "\n".join(
        f"{line}: " + ", ".join(f"{row.found:,} of {row.asked:,} found with {row.blocks}" for row in group.itertuples())
        for line, group in frame.groupby("line", sort=False)
    )
    return Chart(lines.properties(width=WIDTH, height=HEIGHT), text)


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
