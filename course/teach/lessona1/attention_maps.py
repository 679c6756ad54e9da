"""draw_attention_maps: the attention weights of every head on one sentence, one head at a time."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.display.chart import INK, Chart, csv_data
from roseinfer.models import Model

from .recorded_heads import record_heads, require_words

CELL, LABELS = 30, 10  # pixels; letters of a token


def draw_attention_maps(
    model: Model, token_ids: list[int], words: Sequence[str], layer: int = 0, head: int = 0
) -> Chart:
    """Draw a heat map whose row i has token i's weights for the tokens up to itself.

    Two controls choose layer and head; `layer` and `head` are shown first. words: the text of each token.

    Raises ValueError for a head that the model does not have, for another number of words than of tokens, and for
    tokens that the model cannot take.
    """
    import altair as alt
    import pandas as pd

    c = model.config
    if layer not in range(c.num_layers) or head not in range(c.num_heads):
        raise ValueError(f"layer, head must be below {c.num_layers}, {c.num_heads}, got {layer}, {head}")
    require_words(words, token_ids)
    names = [f"{place} {word.strip()[:LABELS]}" for place, word in enumerate(words)]
    rows = [
        {"layer": at, "head": number, "query": names[i], "key": names[j], "percent": round(100 * float(row[j]))}
        for at, heads in enumerate(record_heads(model, token_ids))
        for number, weights in enumerate(heads.weights)
        for i, row in enumerate(weights)
        for j in range(i + 1)
    ]
    selects = {
        name: alt.binding_select(options=list(range(count)), name=f"{name}: ")
        for name, count in (("layer", c.num_layers), ("head", c.num_heads))
    }
    base = (
        alt.Chart(csv_data(pd.DataFrame(rows)))
        .transform_filter("datum.layer == the_layer && datum.head == the_head")
        .encode(
            x=alt.X("key:N", sort=names, title="attends to", axis=alt.Axis(orient="top", labelAngle=-60, grid=False)),
            y=alt.Y("query:N", sort=names, title="token", axis=alt.Axis(grid=False)),
            tooltip=["query:N", "key:N", "percent:Q"],
        )
    )
    scale = alt.Scale(domain=[0, 100], range=["rgba(0, 158, 115, 0.03)", "rgba(0, 158, 115, 0.85)"])
    cells = base.mark_rect(stroke="rgba(128, 128, 128, 0.4)").encode(
        color=alt.Color("percent:Q", scale=scale, title="weight, %")
    )
    numbers = base.mark_text(color=INK, fontSize=11).encode(text="percent:Q")
    size = CELL * len(words)
    chart = (cells + numbers).properties(width=size, height=size * 0.8)
    for name, shown in (("layer", layer), ("head", head)):
        chart = chart.add_params(alt.param(name=f"the_{name}", value=shown, bind=selects[name]))
    return Chart(
        chart,
        f"attention weights of {c.num_layers} layers with {c.num_heads} heads each on {len(words)} tokens; a row adds "
        f"up to 100%. Shown: layer {layer}, head {head}",
    )
