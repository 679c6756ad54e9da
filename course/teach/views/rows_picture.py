"""draw_rows_built: when a block table's rows are built, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE


def draw_rows_built(runs: dict[str, Sequence[int]]) -> Chart:
    """Chart one panel per run: one bar per step, as high as the number of rows that the step built.

    runs: maps a name to the rows built by each step. Raises ValueError for no runs, or runs of different lengths.
    """
    if len({len(rows) for rows in runs.values()}) != 1:
        raise ValueError(f"runs must be of equal length, got { ({name: len(rows) for name, rows in runs.items()}) }")
    import altair as alt
    import pandas as pd

    panels = []
    for i, (name, rows) in enumerate(runs.items()):
        x = alt.X("step:Q", title="decode step", scale=alt.Scale(domain=[-0.5, len(rows) - 0.5], nice=False))
        y = alt.Y("rows:Q", title="rows built")
        bars = alt.Chart(csv_data(pd.DataFrame({"step": range(len(rows)), "rows": rows})))
        bars = bars.mark_bar(color=PALETTE[i % len(PALETTE)]).encode(x, y, tooltip=["step:Q", "rows:Q"])
        panels.append(bars.properties(width=PAGE_WIDTH - 80, height=90, title=f"{name}: {sum(rows)} rows in all"))
    chart = alt.vconcat(*panels).resolve_scale(y="shared")
    return Chart(chart, "Bars of rows built at each step. " + " ".join(map(_facts, runs, runs.values())))


def _facts(name: str, rows: Sequence[int]) -> str:
    later = list(rows[1:])
    return (
        f"{name}: {sum(rows)} rows in {len(rows)} steps, {rows[0]} of them in the first; "
        f"after it at most {max(later, default=0)} in a step; steps without a row: {later.count(0)}."
    )
