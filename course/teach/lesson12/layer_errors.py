"""draw_layer_errors: what the logits lose when one part of a model alone has fewer bits."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model
from roseinfer.models.linear import Int4Linear, Int8Linear, QuantizedLinear
from roseinfer.reference import reference_logits

if TYPE_CHECKING:
    import pandas as pd

BITS: dict[str, type[QuantizedLinear]] = {"8 bits": Int8Linear, "4 bits": Int4Linear}
OUTPUT = "output matrix"
HEIGHT = 26  # of a part


def draw_layer_errors(model: Model, texts: list[list[int]]) -> Chart:
    """Draw layer_errors as bars."""
    import altair as alt

    df = layer_errors(model, texts)
    parts = list(dict.fromkeys(df["part"]))
    chart = (
        alt.Chart(csv_data(df), width=PAGE_WIDTH - 150, height=alt.Step(HEIGHT))
        .mark_bar()
        .encode(
            alt.X("error:Q", title="error of the logits, over their standard deviation", axis=alt.Axis(format="%")),
            alt.Y("part:N", sort=parts, title="quantised alone"),
            alt.YOffset("bits:N", sort=list(BITS)),
            alt.Color(
                "bits:N",
                scale=alt.Scale(domain=list(BITS), range=PALETTE[:2]),
                title=None,
                legend=alt.Legend(orient="top"),
            ),
            [alt.Tooltip("part:N"), alt.Tooltip("bits:N"), alt.Tooltip("error:Q", format=".2%")],
        )
    )
    errors = df.set_index(["part", "bits"])["error"]
    said = [f"{part} {errors[part, '8 bits']:.1%} and {errors[part, '4 bits']:.1%}" for part in parts]
    text = f"error of the logits with one part quantised, in 8 and 4 bits: {', '.join(parts)}"
    return Chart(chart, text=text, alt=f"error of the logits with one part in 8 and 4 bits: {', '.join(said)}")


@torch.inference_mode()
def layer_errors(model: Model, texts: list[list[int]]) -> pd.DataFrame:
    """Measure the error of the logits when one part of the model alone is quantised, for each part and number of bits.

    A part is a layer, or the output matrix; it rounds x to 8 bits. The error is the root mean square, over the standard
    deviation of the logits. Raises ValueError as Int4Linear does.
    """
    import pandas as pd

    exact = _logits(model, texts)
    rows = []
    for part in [*range(model.config.num_layers), None]:
        for bits, layout in BITS.items():
            error = (_logits(_with_part(model, part, layout), texts) - exact).square().mean().sqrt() / exact.std()
            rows.append({"part": OUTPUT if part is None else f"layer {part}", "bits": bits, "error": float(error)})
    return pd.DataFrame(rows)


def _logits(model: Model, texts: list[list[int]]) -> Tensor:
    """Compute the logits [N, V], float32, of all tokens of all texts."""
    return torch.cat([reference_logits(model, token_ids).float() for token_ids in texts])


def _with_part(model: Model, part: int | None, layout: type[QuantizedLinear]) -> Model:
    """Copy the model with one layer's matrices in that layout (None: its output matrix); other weights are shared."""
    copy = deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    if part is None:
        output: Any = model.token_embedding if model.lm_head is None else model.lm_head
        copy.lm_head = layout(output.weight, None)
        return copy
    layers: Any = copy.h if hasattr(copy, "h") else copy.layers
    for parent in list(layers[part].modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, layout(child.weight, child.bias))
    return copy
