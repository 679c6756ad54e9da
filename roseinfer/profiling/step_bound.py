"""What holds a decode step up: reading and arithmetic, as its floor has it, or the host that starts its operations.

A floor alone cannot tell: a step far above it may wait for the host, or for kernels that do not get the best out of the
machine. So the model's own matrix products are run alone, one after another, and set against the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .floors import ARITHMETIC, PASSES_BUDGET_S, READING, Floor, Machine, passes

if TYPE_CHECKING:
    from roseinfer.models import Model

HOST = "the host"


@torch.inference_mode()
def products_seconds(model: Model, batch_size: int) -> float:
    """Seconds that the matrix products of one decode step take by themselves, on batch_size rows; the best of several
    passes. On a GPU, where many small ones wait for their launches, with these.

    Linear layers of any kind: what says how many values a row has, as nn.Linear does, in_features.
    """
    layers = [layer for name, layer in model.named_modules() if hasattr(layer, "in_features") and name != "lm_head"]
    rows = {width: torch.full((batch_size, width), 0.5, device=model.device, dtype=model.dtype) for width in
            {model.config.hidden_size, *(layer.in_features for layer in layers)}}  # fmt: skip

    def products() -> None:
        for layer in layers:
            layer(rows[layer.in_features])
        model.logits(rows[model.config.hidden_size])

    products()  # warm-up
    return min(passes(products, str(model.device), PASSES_BUDGET_S / 2))


def step_bound(
    floor: Floor, machine: Machine, step_seconds: float, products: float, own_bytes: int = 0, own_flops: int = 0
) -> str:
    """What holds up a step that took step_seconds: "reading", "arithmetic" or "the host".

    products: see products_seconds. own_bytes: what the step's own copies and fills read and write. own_flops: of
    products beyond the floor's, such as of tokens that are computed again. It is the host's when the products, reading
    keys and values, and these would take less than half of the step by themselves: most of it goes to Python, and to
    starting operations one by one.
    """
    least = floor.weight_bytes + floor.kv_bytes
    rate = machine.read_rate(least)
    again = own_flops / machine.flops_per_s
    if products + again + (floor.kv_bytes + own_bytes) / rate < step_seconds / 2:
        return HOST
    moving, computing = (least + own_bytes) / rate, floor.flops / machine.flops_per_s + again
    return READING if moving >= computing else ARITHMETIC
