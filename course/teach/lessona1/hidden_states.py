"""prove_hidden_states: hidden states computed by hand against those of transformers, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roseinfer.display.table import Table
from roseinfer.models import Model, to_hf

from ..views.rows_table import table

CLOSE = 1e-4  # of the largest number: float32 sums in another order differ in their last digits


@torch.inference_mode()
def prove_hidden_states(model: Model, token_ids: list[int], states: Sequence[Tensor], logits: Tensor) -> Table:
    """Compare hidden states and logits with those of transformers' model with the same weights.

    states: [T, C] each, after the embedding, after each layer and after the final norm. logits: [T, V]. A row says
    "equal", which is within rounding, or names the first token that differs. Raises ValueError for another number of
    states.
    """
    num_layers = model.config.num_layers
    if len(states) != num_layers + 2:
        raise ValueError(f"states must be {num_layers + 2}: embedding, {num_layers} layers, norm; got {len(states)}")
    theirs = _theirs(model, token_ids)
    names = ["embedding", *(f"layer {layer}" for layer in range(num_layers)), "final norm", "logits"]
    rows = [
        {"after": name, "shape": str(list(got.shape)), "transformers": _verdict(got, want)}
        for name, got, want in zip(names, [*states, logits], theirs, strict=True)
    ]
    return table(rows, title=f"{len(token_ids)} tokens, by hand and by transformers")


def _theirs(model: Model, token_ids: list[int]) -> list[Tensor]:
    """Compute transformers' states; a hook takes the last layer's, which it returns only after the final norm."""
    hf = to_hf(model)
    taken: list[Tensor] = []
    norm = hf.base_model.ln_f if hasattr(hf.base_model, "ln_f") else hf.base_model.norm
    hook = norm.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        output = hf(torch.tensor([token_ids], device=model.device), output_hidden_states=True, use_cache=False)
    finally:
        hook.remove()
    before, last = output.hidden_states[:-1], output.hidden_states[-1]
    return [state[0] for state in (*before, taken[0], last, output.logits)]


def _verdict(got: Tensor, want: Tensor) -> str:
    if got.shape != want.shape:
        return f"has shape {list(want.shape)}"
    wrong = ~((got - want).abs() <= CLOSE * max(1.0, float(want.abs().max())))  # NaN is wrong, too
    if not wrong.any():
        return "equal"
    return f"differs from token {int(wrong.any(-1).nonzero()[0])}"
