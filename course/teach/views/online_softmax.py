"""walk_online_softmax: blocks of scores come in one by one, and three running numbers become attention's result."""

from __future__ import annotations

from math import ceil, exp, floor, inf
from typing import TYPE_CHECKING, Any

from torch import Tensor

from course.display.board import EDGE, MONOSPACE
from roseinfer.arguments import require_count
from roseinfer.display.chart import INK, PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE

if TYPE_CHECKING:
    import altair as alt

MOST_SCORES, MOST_WIDE, DECIMALS = 24, 4, 3
PLOT, HALF, ROW, DASH = 130, PAGE_WIDTH // 2 - 45, 26, [3, 2]  # pixels
COLOURS = {"earlier blocks": PALETTE[2], "this block": PALETTE[5], "not read yet": EDGE}
SAYS = (
    "'m = ' + format(m, '.2f') + ': earlier weights (dashed) are multiplied by exp(' + "
    "format(m_old, '.2f') + ' - ' + format(m, '.2f') + ') = ' + format(factor, '.3f')"
)
ADDED = (
    "format(datum.before, '.3f') + ' × ' + format(factor, '.3f') + ' + ' + "
    "format(datum.now - datum.before * factor, '.3f') + ' = ' + format(datum.now, '.3f')"
)
COLUMNS = {  # the title of each: its width and its text
    "": (40, "datum.sum"),
    "before × factor + this block = now": (270, ADDED),
    "a / l": (90, "datum.sum == 'l' ? '' : format(datum.now / datum.l, '.3f')"),
    "softmax(s) @ V": (110, "datum.sum == 'l' ? '' : format(datum.whole / datum.every, '.3f')"),
}


def walk_online_softmax(scores: Tensor, values: Tensor, block_size: int) -> Chart:
    """Show the largest score m, the sum l and the accumulator a after each block; a slider goes through the blocks.

    When a block has a larger score, what was summed up shrinks by exp(m_old - m_new). After the last block, a / l is
    what one softmax gives. A reader can drag a score, and the page computes everything again.

    Args:
        scores: 1 to 24 numbers [T].
        values: what they weigh, [T, D], D from 1 to 4.
        block_size: how many scores come in at once.

    Raises ValueError for other shapes, for values that are not finite, and for a block_size below 1.
    """
    if scores.ndim != 1 or not 1 <= len(scores) <= MOST_SCORES:
        raise ValueError(f"scores must be 1 to {MOST_SCORES} numbers [T], got shape {list(scores.shape)}")
    if values.ndim != 2 or len(values) != len(scores) or not 1 <= values.size(1) <= MOST_WIDE:
        raise ValueError(f"values must be [{len(scores)}, D], D from 1 to {MOST_WIDE}, got shape {list(values.shape)}")
    for name, tensor in (("scores", scores), ("values", values)):
        if not tensor.isfinite().all():
            raise ValueError(f"{name} must be finite, got {tensor[~tensor.isfinite()][0].item()}")
    require_count("block_size", block_size, 1)
    scores, values = scores.double(), values.double()
    low, high = floor(min(0.0, scores.min().item())) - 1, ceil(max(0.0, scores.max().item())) + 1.5
    chart = Chart(_chart(scores, values, block_size, (low, high)), _facts(scores, values, block_size))
    chart.spec["params"] += _dragging(scores, low, high)
    return chart


def _facts(scores: Tensor, values: Tensor, block_size: int) -> str:
    """Write a line per block, and how far the result is from that of one softmax."""
    lines, top, total, acc = [], -inf, 0.0, values.new_zeros(values.size(1))
    for block, (part, own) in enumerate(zip(scores.split(block_size), values.split(block_size), strict=True), 1):
        old, top = top, max(top, part.max().item())
        shrink, weights = exp(old - top), (part - top).exp()
        total, acc = total * shrink + weights.sum().item(), acc * shrink + weights @ own
        was = f"m stays {_number(top)}" if top == old else f"m = {_number(top)}"
        if block > 1 and top > old:
            was = f"m from {_number(old)} to {_number(top)}, l and a times {shrink:.3f}"
        lines.append(f"block {block}: {was}; l = {_number(total)}, a = {_vector(acc)}")
    apart = (acc / total - scores.softmax(0) @ values).abs().max().item()
    lines.append(f"a / l = {_vector(acc / total)}; largest difference from softmax(scores) @ values: {apart:.6f}")
    return "\n".join(lines)


def _dragging(scores: Tensor, low: float, high: float) -> list[dict[str, Any]]:
    """Make the signals of a drag: the point that is held, and the scores. Vega-Lite hands them to Vega as they are."""
    start = [round(score, DECIMALS + 3) for score in scores.tolist()]
    held = {"events": "@points_marks:mousedown", "update": "{i: datum.i, s: datum.s, y: y()}"}
    moved = f"clamp(round(10 * (held.s + (held.y - y()) * {(high - low) / PLOT})) / 10, {low}, {high})"
    each = ", ".join(f"held.i == {i} ? {moved} : scores[{i}]" for i in range(len(start)))
    drag = {"events": "[@points_marks:mousedown, window:mouseup] > window:mousemove!", "update": f"[{each}]"}
    undo = {"events": "@points_marks:dblclick", "update": str(start)}
    return [{"name": "held", "value": {}, "on": [held]}, {"name": "scores", "value": start, "on": [drag, undo]}]


def _chart(scores: Tensor, values: Tensor, block_size: int, reach: tuple[float, float]) -> alt.VConcatChart:
    """Draw the scores, the weights, and l and a, all computed from the signals `scores` and `block`."""
    import altair as alt
    import pandas as pd

    count = ceil(len(scores) / block_size)
    sums = {"l": [1.0] * len(scores)} | {f"a[{d}]": column for d, column in enumerate(values.T.tolist())}
    frame = pd.DataFrame({"i": range(len(scores))} | sums).melt("i", var_name="sum").round(DECIMALS + 3)
    data = alt.Chart(csv_data(frame)).transform_calculate(
        s="scores[datum.i]",
        part=f"{list(COLOURS)}[clamp(floor(datum.i / {block_size}) + 2 - block, 0, 2)]",
        weight="datum.part == 'not read yet' ? 0 : exp(datum.s - m)",
        was="datum.part == 'earlier blocks' ? exp(datum.s - m_old) : null",
        all="exp(datum.s - extent(scores)[1])",
    )
    slider = alt.binding_range(min=1, max=count, step=1, name=f"block, 1 to {count}: ")
    return (
        alt.vconcat(_tokens(data.transform_filter("datum.sum == 'l'"), reach), _sums(data, list(sums)))
        .properties(title=alt.Title(alt.expr(SAYS)))
        .add_params(
            alt.param(name="block", value=count, bind=slider),
            alt.param(name="m", expr=f"extent(slice(scores, 0, block * {block_size}))[1]"),
            alt.param(name="m_old", expr=f"block > 1 ? extent(slice(scores, 0, (block - 1) * {block_size}))[1] : m"),
            alt.param(name="factor", expr="exp(m_old - m)"),
        )
    )


def _tokens(tokens: alt.Chart, reach: tuple[float, float]) -> alt.HConcatChart:
    """Draw each token's score and the largest ones, now and before, and each token's weight, now and before."""
    import altair as alt

    colours = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    colour = alt.Color("part:N", title=None, scale=colours, legend=alt.Legend(orient="bottom"))
    token = alt.X("i:O", title="token", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    score = alt.Y("s:Q", title=None, scale=alt.Scale(domain=reach, nice=False))
    weight = alt.Y("weight:Q", title=None, scale=alt.Scale(domain=[0, 1.1], nice=False))
    largest = alt.Chart(alt.Data(values=[{}])).transform_calculate(m="m", m_old="m_old")
    points = tokens.mark_circle(size=110, opacity=1, stroke=INK, cursor="ns-resize").encode(token, score, colour)
    scored = alt.layer(
        tokens.mark_bar(opacity=0.5).encode(token, score, colour),
        largest.mark_rule(strokeDash=DASH).encode(y="m_old:Q"),
        largest.mark_rule().encode(y="m:Q"),
        points.properties(name="points"),
        title="Drag a score s (double click: undo)",
    )
    weighted = alt.layer(
        tokens.mark_bar(opacity=0.5).encode(token, weight, colour),
        tokens.mark_bar(filled=False, stroke=INK, strokeDash=DASH).encode(token, y="was:Q"),
        title="Weights exp(s - m)",
    )
    return alt.hconcat(*(plot.properties(width=HALF, height=PLOT) for plot in (scored, weighted)))


def _sums(data: alt.Chart, names: list[str]) -> alt.HConcatChart:
    """Write l and each element of a, before the block and after it, and the weighted mean."""
    import altair as alt

    sums = data.transform_calculate(
        before="datum.was * datum.value", now="datum.weight * datum.value", whole="datum.all * datum.value"
    ).transform_aggregate(
        before="sum(before)", now="sum(now)", whole="sum(whole)", l="sum(weight)", every="sum(all)", groupby=["sum"]
    )
    columns = (
        sums.mark_text(align="left", font=MONOSPACE, text=alt.expr(text))
        .encode(alt.Y("sum:N", axis=None, sort=names), x=alt.value(0))
        .properties(width=width, height=ROW * len(names), title=title)
        for title, (width, text) in COLUMNS.items()
    )
    return alt.hconcat(*columns)


def _vector(numbers: Tensor) -> str:
    return f"[{', '.join(map(_number, numbers.tolist()))}]"


def _number(number: float) -> str:
    return f"{round(number, DECIMALS) + 0.0:.{DECIMALS}f}"  # + 0.0: no -0.000
