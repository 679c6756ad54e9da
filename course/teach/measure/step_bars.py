"""draw_step_parts: one decode step of two stages as stacked bars, by the parts that its time goes to."""

from __future__ import annotations

from course.display.board import EDGE
from roseinfer.arguments import counted, require_count
from roseinfer.bench.ladder import check_stages
from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model
from roseinfer.stage import Stage

from .step_parts import ATTENTION, CHOICE, FORWARD, HOST, PARTS, PRODUCTS, REPLAY, TABLES, step_parts

LABELS, BAR = 210, 38  # pixels: the names and the numbers beside the bars, and the height of a bar
COLOURS = {
    TABLES: PALETTE[5],
    ATTENTION: PALETTE[2],
    PRODUCTS: PALETTE[0],
    FORWARD: PALETTE[4],
    REPLAY: PALETTE[3],
    CHOICE: PALETTE[6],
    HOST: EDGE,
}


def draw_step_parts(
    before: type[Stage],
    after: type[Stage],
    model: Model,
    batch_size: int = 8,
    *,
    prompt_len: int = 64,
    steps: int = 20,
) -> Chart:
    """Chart the mean time of a decode step of two stages, by its parts, in ms of wall time on the CPU.

    The stages take their steps in turn. Attention and matrix products are timed inside the forward, which a replay
    of a graph does not allow. Raises ValueError for a bad argument, and for a model that is not on the CPU.
    """
    check_stages([before, after])
    for name, value in (("batch_size", batch_size), ("prompt_len", prompt_len), ("steps", steps)):
        require_count(name, value, at_least=1)
    if model.device.type != "cpu":
        raise ValueError(f"model must be on the CPU, where parts do not overlap, got {model.device}")
    parts = step_parts((before, after), model, batch_size, prompt_len, steps)
    text = (
        f"one decode step of {before.name} and {after.name} by its parts: {counted(batch_size, 'sequence')}, "
        f"prompts of {counted(prompt_len, 'token')}, means of {counted(steps, 'step')}"
    )
    return chart_of(parts, text)


def chart_of(parts: dict[str, dict[str, float]], text: str) -> Chart:
    """Chart the parts of each stage's step as stacked bars. parts: stage -> part -> seconds."""
    import altair as alt
    import pandas as pd

    shown = [part for part in PARTS if any(own[part] > 0 for own in parts.values())]
    rows = [
        (name, part, 1e3 * own[part], own[part] / sum(own.values()), order)
        for name, own in parts.items()
        for order, part in enumerate(shown)
    ]
    frame = pd.DataFrame(rows, columns=["stage", "part", "ms", "share", "order"]).round(5)
    colours = alt.Scale(domain=shown, range=[COLOURS[part] for part in shown])
    y = alt.Y("stage:N", title=None, sort=list(parts), axis=alt.Axis(ticks=False, labelLimit=LABELS))
    tips = ["stage:N", "part:N", alt.Tooltip("ms:Q", format=".3f"), alt.Tooltip("share:Q", format=".1%")]
    legend = alt.Legend(orient="top", columns=4, symbolType="square")
    bars = alt.Chart(csv_data(frame)).mark_bar(height=BAR - 12).encode(
        x=alt.X("ms:Q", title="ms per decode step", stack="zero"),
        y=y,
        color=alt.Color("part:N", title=None, scale=colours, legend=legend),
        order="order:Q",
        tooltip=tips,
    )  # fmt: skip
    totals = pd.DataFrame({"stage": list(parts), "ms": [1e3 * sum(own.values()) for own in parts.values()]})
    numbers = alt.Chart(csv_data(totals.round(5))).mark_text(align="left", dx=6)
    numbers = numbers.encode(x="ms:Q", y=y, text=alt.Text("ms:Q", format=".2f"))
    told = [f"{name} {1e3 * sum(own.values()):.2f} ms" for name, own in parts.items()]
    drawn = (bars + numbers).properties(width=PAGE_WIDTH - LABELS, height=BAR * len(parts))
    return Chart(drawn, text, f"{text}; {', '.join(told)}")
