"""draw_rotations: how far RoPE rotates each pair of a head, by the position."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from typing import TYPE_CHECKING

from roseinfer.arguments import require_count
from roseinfer.display.chart import GRID, INK, Chart
from roseinfer.display.figure import PALETTE
from roseinfer.models import Rope

if TYPE_CHECKING:
    import altair

SIZE = 120  # pixels
CORNERS = 60  # of the circle


def draw_rotations(rope: Rope | None, head_dim: int, pairs: Sequence[int], last: int = 200, shown: int = 20) -> Chart:
    """Draw a dial for each of these pairs: the angle of its rotation at a position, which a slider sets.

    Raises ValueError for no pair and for one that a head of head_dim numbers does not have, for an odd head_dim, for a
    model without RoPE (rope=None) and for a position shown after the last one.
    """
    if rope is None:
        raise ValueError(
            "rope must be the Rope of a model with rotary positions, got None (GPT-2 has a table of positions)"
        )
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, as RoPE rotates pairs, got {head_dim}")
    require_count("last", last, at_least=1)
    require_count("shown", shown, at_least=0, at_most=last)
    if not pairs:
        raise ValueError(f"pairs must name at least one of 0 to {head_dim // 2 - 1}, got none")
    if absent := [pair for pair in pairs if pair not in range(head_dim // 2)]:
        raise ValueError(f"pairs must be 0 to {head_dim // 2 - 1}, got {absent[0]}")
    import altair as alt
    import torch

    frequencies = rope.inverse_frequencies(head_dim, torch.device("cpu")).tolist()
    slider = alt.binding_range(min=0, max=last, step=1, name=f"position 0 to {last}: ")
    position = alt.param(name="position", value=shown, bind=slider)
    dials = [_dial(pair, frequencies[pair]) for pair in pairs]
    numbers = ", ".join(map(str, pairs))
    return Chart(
        alt.hconcat(*dials).add_params(position),
        f"rotation of the pairs {numbers} of a head with {head_dim} numbers at positions 0 to {last}, by a slider",
        f"Dials of the pairs {numbers} at position {shown}: pair {pairs[0]} makes a turn in "
        f"{2 * pi / frequencies[pairs[0]]:.0f} positions, pair {pairs[-1]} in {2 * pi / frequencies[pairs[-1]]:,.0f}.",
    )


def _dial(pair: int, frequency: float) -> altair.LayerChart:
    import altair as alt
    import pandas as pd

    rim = pd.DataFrame([(step, cos(at), sin(at)) for step, at in enumerate(_angles())], columns=["step", "x", "y"])
    x, y = (alt.X("x:Q", axis=None, scale=_scale()), alt.Y("y:Q", axis=None, scale=_scale()))
    needle = (
        alt.Chart(pd.DataFrame([{"frequency": frequency, "zero": 0}]))
        .transform_calculate(x="cos(position * datum.frequency)", y="sin(position * datum.frequency)")
        .encode(x=x, y=y)
    )
    return alt.layer(
        alt.Chart(rim.round(4)).mark_line(color=GRID).encode(x=x, y=y, order="step:Q"),
        needle.mark_rule(color=PALETTE[0], strokeWidth=3).encode(x2="zero:Q", y2="zero:Q"),
        needle.mark_circle(color=PALETTE[1], size=110, opacity=1),
    ).properties(width=SIZE, height=SIZE, title=_title(pair, frequency))


def _title(pair: int, frequency: float) -> altair.TitleParams:
    import altair as alt

    return alt.TitleParams(f"pair {pair}", subtitle=f"a turn in {2 * pi / frequency:,.0f} tokens", color=INK)


def _angles() -> list[float]:
    return [2 * pi * step / CORNERS for step in range(CORNERS + 1)]


def _scale() -> altair.Scale:
    import altair as alt

    return alt.Scale(domain=[-1.15, 1.15], nice=False)
