"""time_changes and draw_changes: what each of stage 10's five changes gains in a decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median, quantiles

from roseinfer.bench.interleave import interleaved
from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling.clock import seconds_of
from roseinfer.stage import Stage

from ..measure.progress_bar import progress_bar
from ..measure.ready_batch import ready_batch
from .five_changes import BUFFER, five_changes

LABELS, BAR, WARM_UP = 180, 30, 5  # pixels, pixels, steps
Times = Mapping[str, Sequence[float]]


def time_changes(
    before: type[Stage], after: type[Stage], model: Model, batch_size: int, prompt_len: int, steps: int = 60
) -> dict[str, list[float]]:
    """Time decode steps of stage 09, and of it with one more change each time, up to stage 10, in seconds on a CPU.

    The stages take their steps in turn. before, after: NumbaPaged and OneTable.
    """
    runs = {}
    for stage_class in five_changes(before, after):
        batch = ready_batch(stage_class, model, [prompt_len] * batch_size, max_tokens=steps + WARM_UP + 2)
        name = BUFFER if stage_class is after else stage_class.name
        runs[name] = partial(seconds_of, partial(decode_step, *batch))
    with progress_bar("decode steps", total=len(runs) * (steps + WARM_UP)) as done:
        return interleaved(runs, steps, warmup=WARM_UP, on_run=lambda name, repeat: done())


def draw_changes(times: Times) -> Chart:
    """Chart a bar per stage: the median decode step in ms. The line spans the middle half of its steps."""
    import altair as alt
    import pandas as pd

    rows = []
    for name, seconds in times.items():
        low, middle, high = (1e3 * quartile for quartile in quantiles(seconds, n=4))
        rows.append({"stage": name, "ms": middle, "from": low, "to": high})
    frame = pd.DataFrame(rows).round(4)
    y = alt.Y("stage:N", title=None, sort=list(times), axis=alt.Axis(ticks=False, labelLimit=LABELS))
    tips = ["stage:N", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("ms", "from", "to"))]
    base = alt.Chart(csv_data(frame)).encode(y=y, tooltip=tips)
    bars = base.mark_bar(height=BAR - 12, color=PALETTE[0]).encode(x=alt.X("ms:Q", title="ms per decode step"))
    ranges = base.mark_rule(strokeWidth=2).encode(x="from:Q", x2="to:Q")
    numbers = base.mark_text(align="left", dx=6).encode(x="to:Q", text=alt.Text("ms:Q", format=".2f"))
    drawn = (bars + ranges + numbers).properties(width=PAGE_WIDTH - LABELS, height=BAR * len(times))
    first, *more = times
    text = f"decode step of {first}, and with one more change each: {', '.join(more)}"
    told = [f"{name} {1e3 * median(seconds):.2f} ms" for name, seconds in times.items()]
    return Chart(drawn, text, f"{text}; {', '.join(told)}")
