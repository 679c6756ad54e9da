"""draw_draft_gain: how many tokens a draft of each length is expected to give, and how many per second."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE

HEIGHT, WIDTH = 170, PAGE_WIDTH // 2 - 60
BEST, OTHERS = PALETTE[2], "#BBBBBB"


def draw_draft_gain(seconds: Sequence[float], acceptance: float) -> Chart:
    """Draw expected tokens of a step with k drafted ones, and tokens per second; a slider sets the acceptance.

    seconds: of a step with k drafted tokens, for k from 0 up. acceptance: what the slider shows first, the probability
    that a drafted token is accepted if all before it are. A step gives 1 + a + a^2 + ... + a^k tokens (Leviathan et
    al., 2023). Raises ValueError for no seconds, and for an acceptance that is no probability.
    """
    import altair as alt
    import pandas as pd

    if not len(seconds):
        raise ValueError("seconds must be at least one number, got none")
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must be from 0 to 1, got {acceptance}")
    frame = pd.DataFrame({"k": range(len(seconds)), "seconds": [round(each, 6) for each in seconds]})
    slider = alt.binding_range(min=0, max=1, step=0.01, name="share of drafted tokens that are accepted ")
    chosen = alt.param(name="a", value=round(acceptance, 2), bind=slider)
    base = (
        alt.Chart(csv_data(frame), width=WIDTH, height=HEIGHT)
        .transform_calculate(tokens="a < 1 ? (1 - pow(a, datum.k + 1)) / (1 - a) : datum.k + 1")
        .transform_calculate(rate="datum.tokens / datum.seconds")
        .transform_joinaggregate(best="max(rate)")
    )
    k = alt.X("k:O", title="drafted tokens, k", axis=alt.Axis(labelAngle=0))
    colour = alt.condition("datum.rate == datum.best", alt.value(BEST), alt.value(OTHERS))
    facts = [alt.Tooltip("k:O"), alt.Tooltip("tokens:Q", format=".2f"), alt.Tooltip("rate:Q", format=".1f")]
    bars = [
        base.mark_bar().encode(k, alt.Y(f"{name}:Q", title=None), color=colour, tooltip=facts).properties(title=title)
        for name, title in (("tokens", "Expected tokens of a step"), ("rate", "Tokens per second; the most in green"))
    ]
    expected = (sum(acceptance**i for i in range(k + 1)) for k in range(len(seconds)))
    text = f"{acceptance:.2f} of the drafted tokens are accepted; expected tokens of a step with 0, 1, 2, ... drafted: "
    return Chart(alt.hconcat(*bars).add_params(chosen), text + ", ".join(f"{each:.2f}" for each in expected))
