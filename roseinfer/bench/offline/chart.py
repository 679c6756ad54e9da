"""OfflineChart: an offline race as a picture, each contender's speed against Hugging Face's generate."""

from __future__ import annotations

from roseinfer.display.chart import Chart

from ..settings import HF_NAME
from .result import FULL, OfflineResult

PANEL_WIDTH, PANEL_HEIGHT = 230, 220


class OfflineChart(Chart):
    """A panel for each prompt length and precision; in it a group of bars for each batch size.

    The height is tokens a second over those of HF generate in fp32 in the same run and cell, with a line at 1. In a
    race without HF generate in fp32 it is tokens a second.
    """

    def __init__(self, result: OfflineResult) -> None:
        import altair as alt
        import pandas as pd

        asked, names = result.arguments, list(dict.fromkeys(row["name"] for row in result.rows))
        rows = pd.DataFrame(
            {
                "contender": row["name"],
                "panel": f"{row['precision']}, prompt of {row['prompt_len']}",
                "batch size": row["batch_size"],
                "times HF": row["vs_hf_float32"],
                "tok/s": row["tokens_per_second"],
                "of floor": row["floor_share"],
            }
            for row in result.rows
        )
        against_hf = not rows["times HF"].isna().any()
        height, title = ("times HF", f"× {HF_NAME} in {FULL}") if against_hf else ("tok/s", "tokens a second")
        tooltip = ["contender:N", "panel:N", "batch size:O", alt.Tooltip("tok/s:Q", format=",.0f")]
        tooltip += [alt.Tooltip("times HF:Q", format=".2f")] if against_hf else []
        tooltip += [alt.Tooltip("of floor:Q", format=".0%")]
        base = alt.Chart()
        bars = base.mark_bar().encode(
            x=alt.X("batch size:O", title="batch size", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("contender:N", sort=names),
            y=alt.Y(f"{height}:Q", title=title),
            color=alt.Color("contender:N", sort=names, title=None, legend=alt.Legend(orient="top")),
            tooltip=tooltip,
        )
        line = [base.mark_rule(strokeDash=[4, 3]).encode(y=alt.datum(1))] if against_hf else []
        panels = list(dict.fromkeys(rows["panel"]))
        chart = (
            alt.layer(bars, *line, data=rows)
            .properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
            .facet(facet=alt.Facet("panel:N", sort=panels, title=None), columns=min(3, len(panels)))
            .properties(title=f"{asked['model']}, {asked['max_tokens']} new tokens each, greedily")
        )
        sizes = ", ".join(map(str, asked["batch_sizes"]))
        super().__init__(chart, f"{', '.join(names)}: {', '.join(panels)}; batches of {sizes}")
