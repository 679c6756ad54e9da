"""layer_errors: what the logits lose when one part of a model alone has fewer bits."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer.display.table import Table
from roseinfer.models import Model
from roseinfer.models.linear import Int4Linear, Int8Linear, QuantizedLinear
from roseinfer.reference import reference_logits

from ..views.rows_table import table

BITS: dict[str, type[QuantizedLinear]] = {"8 bits": Int8Linear, "4 bits": Int4Linear}
OUTPUT = "output matrix"


@torch.inference_mode()
def layer_errors(model: Model, texts: list[list[int]]) -> Table:
    """Measure the error of the logits when one part of the model alone is quantised, for each part and number of bits.

    A part is a layer, or the output matrix; it rounds x to 8 bits. The error is the root mean square, over the standard
    deviation of the logits. Raises ValueError as Int4Linear does.
    """
    exact = _logits(model, texts)
    rows: list[dict[str, Any]] = []
    for part in [*range(model.config.num_layers), None]:
        rows.append({"quantised alone": OUTPUT if part is None else f"layer {part}"})
        for bits, layout in BITS.items():
            error = _logits(_with_part(model, part, layout), texts) - exact
            rows[-1][bits] = float(error.square().mean().sqrt() / exact.std())
    title = "Error of the logits, over their standard deviation"
    return table(rows, list(BITS), title, formats=dict.fromkeys(BITS, "{:.1%}"))


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
