"""draw_clock_race: the exponential race, draw by draw: when each token's clock rings, and how often each has won."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.display.chart import INK, PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.sampling import exponential_race

HEIGHT = 150
LATEST = 4.0  # the end of the time axis: a clock that rings later is drawn at its edge


def draw_clock_race(probs: Tensor, draws: int = 300, seed: int = 0) -> Chart:
    """Draw the exponential race of a few tokens with the probabilities probs [V]; a slider goes through the draws.

    To the left are the clocks of this draw, the first to ring in colour; to the right is how often each token has won
    so far, and its p. The race is that of sampling.exponential_race, on noise from a generator of the CPU with that
    seed.
    """
    import altair as alt
    import pandas as pd

    probs = (probs / probs.sum()).cpu().float()
    noise = torch.empty(draws, len(probs)).exponential_(generator=torch.Generator().manual_seed(seed))
    winners = exponential_race(probs.expand(draws, -1), noise)
    rings = noise / probs
    won = torch.nn.functional.one_hot(winners, len(probs)).cumsum(0)
    names = [f"p = {p:.2f}" for p in probs.tolist()]
    frame = pd.DataFrame(
        [
            {
                "draw": draw + 1,
                "token": names[i],
                "rings": round(min(rings[draw, i].item(), LATEST), 3),
                "first": "yes" if winners[draw] == i else "no",
                "won": int(won[draw, i]),
                "share": round(won[draw, i].item() / (draw + 1), 4),
                "p": round(probs[i].item(), 4),
            }
            for draw in range(draws)
            for i in range(len(probs))
        ]
    )

    slider = alt.param(name="draw", value=draws, bind=alt.binding_range(min=1, max=draws, step=1, name="draw "))
    base = alt.Chart(csv_data(frame), height=HEIGHT).transform_filter(alt.datum.draw == slider)
    token = alt.Y("token:N", sort=names, title=None)
    colour = alt.Color(
        "first:N",
        scale=alt.Scale(domain=["yes", "no"], range=[PALETTE[2], "#BBBBBB"]),
        title="rings first",
        legend=alt.Legend(orient="bottom"),
    )
    at = alt.X(
        "rings:Q",
        title="the clock rings at (later: at the edge)",
        scale=alt.Scale(domain=[0, LATEST]),
        axis=alt.Axis(tickCount=4),
    )
    facts = ["token:N", "rings:Q", "won:Q", "share:Q"]
    stems = base.mark_rule(strokeWidth=2).encode(at, token, x2=alt.datum(0), color=colour)
    clocks = (stems + base.mark_circle(size=140, opacity=1).encode(at, token, color=colour, tooltip=facts)).properties(
        width=PAGE_WIDTH // 2 - 90, title="Clocks of this draw"
    )
    share = alt.X(
        "share:Q", title="share of the draws won so far", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5)
    )
    bars = base.mark_bar(color=PALETTE[2]).encode(share, token, tooltip=facts)
    ticks = base.mark_tick(color=INK, thickness=3, size=24).encode(alt.X("p:Q"), token)
    won_so_far = (bars + ticks).properties(width=PAGE_WIDTH // 2 - 90, title="Won so far; the mark is p")
    chart = alt.hconcat(clocks, won_so_far).add_params(slider)
    last = ", ".join(f"{int(n)} of {draws} for {name}" for name, n in zip(names, won[-1], strict=True))
    return Chart(chart, f"Exponential race of {len(probs)} clocks, seed {seed}. Won: {last}.")
