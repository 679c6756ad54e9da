"""The bound of a decode step: the machine's rate of reading or of arithmetic, the host, or kernels below those rates.

The floor alone cannot tell: a step that takes many times its floor waits for the host, or its kernels are slow. So the
step's matrix products are run alone, one after another, and compared with the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .floors import ARITHMETIC, PASSES_BUDGET_S, READING, Floor, Machine, passes

if TYPE_CHECKING:
    from roseinfer.models import Model

HOST = "the host"
KERNELS = "its kernels"


@torch.inference_mode()
def products_seconds(model: Model, batch_size: int, own: Model | None = None) -> float:
    """Time the matrix products of one decode step alone, on batch_size rows; the best of several passes, in seconds.

    On a GPU, where many small products wait for their launches, the launches count, too. model: as loaded; it says
    which layers multiply, and how wide their rows are. own: the model that the step runs, in which layers of the same
    names may have another layout.
    """
    widths = {name: module.in_features for name, module in model.named_modules() if hasattr(module, "in_features")}
    widths.pop("lm_head", None)
    layers = dict(model.named_modules()) | dict((own or model).named_modules())
    rows = {
        width: torch.full((batch_size, width), 0.5, device=model.device, dtype=model.dtype)
        for width in {model.config.hidden_size, *widths.values()}
    }

    def products() -> None:
        for name, width in widths.items():
            layers[name](rows[width])
        (own or model).logits(rows[model.config.hidden_size])

    products()  # warm-up
    return min(passes(products, str(model.device), PASSES_BUDGET_S / 2))


def step_bound(
    floor: Floor, machine: Machine, step_seconds: float, products: float | None, own_bytes: int = 0, own_flops: int = 0
) -> str:
    """Name the bound of a step that took step_seconds: "reading", "arithmetic", "the host" or "its kernels".

    products: see products_seconds; None for a step in which one operation contains them. own_bytes: what the step's own
    copies and fills read and write. own_flops: of products beyond the floor's, such as of tokens that are computed
    again.

    Reading or arithmetic, whichever takes longer at the machine's measured rates, if that is at least half of the step.
    The host, if the products, reading keys and values, and the step's own work would take less than half of it: the
    rest is Python, starting operations one by one, and small operations. Else its kernels: they run below those rates.
    """
    least = floor.weight_bytes + floor.kv_bytes
    rate = machine.read_rate(least)
    again = own_flops / machine.flops_per_s
    moving, computing = (least + own_bytes) / rate, floor.flops / machine.flops_per_s + again
    if max(moving, computing) >= step_seconds / 2:
        return READING if moving >= computing else ARITHMETIC
    if products is None:
        return KERNELS
    on_device = products + again + (floor.kv_bytes + own_bytes) / rate
    return HOST if on_device < step_seconds / 2 else KERNELS
