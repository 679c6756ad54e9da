"""draw_recompute and draw_floors: what a cache saves, and what a step could reach at most."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.display.chart import INK, PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.models import ModelConfig
from roseinfer.profiling import Machine, decode_floor


def draw_recompute(prompt_len: int, new_tokens: int) -> Chart:
    """Chart how many tokens each step has to compute, without a cache and with one."""
    import altair as alt
    import pandas as pd

    without = [prompt_len + step for step in range(new_tokens)]
    with_cache = [prompt_len] + [1] * (new_tokens - 1)
    names = f"no cache: {sum(without)} in all", f"KV cache: {sum(with_cache)} in all"
    rows = [
        (step, *row) for step in range(new_tokens) for row in zip(names, (without[step], with_cache[step]), strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["step", "by", "tokens"])
    bars = (
        alt.Chart(csv_data(frame), width=PAGE_WIDTH - 100, height=180)
        .mark_bar()
        .encode(
            alt.X("step:O", title="step (0 is the prefill)", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            alt.Y("tokens:Q", title="tokens computed", stack=None),
            alt.Color(
                "by:N",
                sort=None,
                title=None,
                scale=alt.Scale(range=[PALETTE[1], PALETTE[0]]),
                legend=alt.Legend(orient="top"),
            ),
            tooltip=["step:O", "by:N", "tokens:Q"],
        )
    )
    return Chart(
        bars,
        f"Bar chart of tokens computed at each of {new_tokens} steps after a prompt of {prompt_len}: without a cache "
        f"{without[0]} rising to {without[-1]}, {sum(without)} in all; with a cache {prompt_len} once, then 1 a step, "
        f"{sum(with_cache)} in all.",
    )


def draw_floors(
    shapes: dict[str, ModelConfig], machine: Machine, batch_sizes: Sequence[int], context_len: int
) -> Chart:
    """Chart the most tokens a second that a decode step could reach here, against the batch size, for each shape."""
    import altair as alt

    rows = [
        {"shape": name, "batch size": b, "tok/s": b / floor.seconds, "bound by": floor.bound}
        for name, config in shapes.items()
        for b in batch_sizes
        if (floor := decode_floor(config, [context_len] * b, machine.dtype, machine)).seconds
    ]
    chart = alt.Chart(alt.Data(values=rows), width=460, height=240).encode(
        alt.X("batch size:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=batch_sizes)),
        alt.Y("tok/s:Q", title="tokens/s at most", scale=alt.Scale(type="log"), axis=alt.Axis(format=",")),
        color=alt.Color("shape:N", sort=None, legend=None),
        tooltip=["shape:N", "batch size:Q", alt.Tooltip("tok/s:Q", format=",.0f"), "bound by:N"],
    )
    lines = chart.mark_line() + chart.mark_point(filled=True, size=50, opacity=1)
    names = chart.transform_filter(f"datum['batch size'] == {max(batch_sizes)}")
    return Chart(
        lines + names.mark_text(align="left", dx=8).encode(text="shape:N", color=alt.value(INK)),
        f"The most tokens a second that decoding could reach on this machine, for {', '.join(shapes)}, at batch sizes "
        f"{', '.join(map(str, batch_sizes))} and {context_len} tokens of context. First it grows with the batch, "
        "because the weights are read once for all sequences; then arithmetic or the caches become the limit.",
    )
