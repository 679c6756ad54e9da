"""text_price: what fewer bits do to a model's text. round_inputs, round_weights: models whose values have few bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roseinfer.display.table import Table
from roseinfer.models import Model
from roseinfer.models.weights import weight_bytes
from roseinfer.reference import reference_logits

from ..views.rows_table import table

LEVELS = 127  # of 8 bits, on either side of 0
ROW = 10**9  # values that share a scale: a whole row


@torch.inference_mode()
def text_price(exact: Model, models: Mapping[str, Model], texts: Mapping[str, list[list[int]]]) -> Table:
    """Compare models by the bytes that a step reads, and by KL divergence and perplexity on each kind of texts.

    texts: by kind, the token ids of each text. KL is the divergence of the next token from the exact model's, in nats a
    token, averaged over all tokens: 0 where both give every token the same probability. Perplexity: e to the mean of
    -log p of the tokens that the texts have, of each but its first, in fp32. Raises ValueError for a text of fewer than
    two tokens.
    """
    if short := [kind for kind, several in texts.items() if min(map(len, several), default=0) < 2]:
        raise ValueError(f"texts must have at least two tokens each, got fewer in {', '.join(short)}")
    expected = {kind: [log_probs(exact, token_ids) for token_ids in several] for kind, several in texts.items()}
    rows: list[dict[str, Any]] = []
    for model_name, model in ({"as it is": exact} | dict(models)).items():
        rows.append({"model": model_name, "bytes": weight_bytes(model)})
        for kind, several in texts.items():
            got = [log_probs(model, token_ids) for token_ids in several]
            next_ids = torch.tensor([token_id for token_ids in several for token_id in token_ids[1:]])
            of_next = torch.cat([own[:-1] for own in got])
            apart = F.kl_div(torch.cat(got), torch.cat(expected[kind]), log_target=True, reduction="batchmean")
            rows[-1] |= {f"KL, {kind}": float(apart), f"perplexity, {kind}": float(F.nll_loss(of_next, next_ids).exp())}
    live = [column for column in rows[0] if column not in ("model", "bytes")]
    formats = {column: "{:,.2f}" if column.startswith("perplexity") else "{:.4f}" for column in live}
    lengths = ", ".join(f"{kind}: {sum(map(len, several)):,} tokens" for kind, several in texts.items())
    return table(rows, live, lengths, formats=formats | {"bytes": "{:,}"})


def log_probs(model: Model, token_ids: list[int]) -> Tensor:
    """Compute the log probabilities [N, V], float32, of what may follow each token of the text."""
    return reference_logits(model, token_ids).float().log_softmax(-1)


def round_inputs(model: Model, group: int = ROW) -> Model:
    """Round the inputs of the model's linear layers to 8 bits from now on; returns the model itself.

    Each `group` neighbouring values of a row share a scale; by default the whole row.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda layer, args: (rounded(args[0], group),))
    return model


def round_weights(model: Model, bits: int, group: int = ROW) -> Model:
    """Round the weights of the model's linear layers to `bits`, in place; they stay in float32. Returns the model.

    Each `group` neighbouring values of a row share a scale; by default the whole row. The token embedding, which is
    also the output matrix, stays exact. Raises ValueError for fewer than 2 bits.
    """
    if bits < 2:
        raise ValueError(f"bits must be at least 2, for a sign and a step, got {bits}")
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(rounded(layer.weight, group, bits))
    return model


def largest_over_median(model: Model, token_ids: list[int], layer: int) -> Table:
    """Look at the inputs of one layer's matrices: the largest value of a row over its median, for a middling row."""
    ratios: dict[str, float] = {}

    def look(name: str, linear: nn.Module, args: tuple[Tensor]) -> None:
        x = args[0].abs()
        ratios[name] = float((x.amax(dim=1) / x.median(dim=1).values).median())

    layers: Any = model.h
    watched = [(name, m) for name, m in layers[layer].named_modules() if isinstance(m, nn.Linear)]
    hooks = [linear.register_forward_pre_hook(partial(look, name)) for name, linear in watched]
    try:
        reference_logits(model, token_ids)
    finally:
        for hook in hooks:
            hook.remove()
    steps = {name: LEVELS / ratio for name, ratio in ratios.items()}
    rows = [{"input of": n, "largest / median": r, "steps of 127 for the median": steps[n]} for n, r in ratios.items()]
    formats = {"largest / median": "{:.0f}", "steps of 127 for the median": "{:.1f}"}
    return table(rows, list(formats), formats=formats)


def rounded(x: Tensor, group: int, bits: int = 8) -> Tensor:
    levels = 2 ** (bits - 1) - 1  # on either side of 0
    parts = []
    for part in x.split(group, dim=-1):
        step = (part.abs().amax(-1, keepdim=True) / levels).clamp_min(torch.finfo(x.dtype).tiny)
        parts.append((part / step).round() * step)
    return torch.cat(parts, dim=-1)
