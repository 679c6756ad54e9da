"""text_price: what fewer bits do to a model's text. round_inputs: a model whose activations have 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roseinfer.display.table import Table
from roseinfer.models import Model
from roseinfer.reference import reference_logits

LEVELS = 127  # of 8 bits, on either side of 0


def text_price(exact: Model, models: Mapping[str, Model], texts: Mapping[str, list[int]]) -> Table:
    """One row per model, for each text the KL divergence of its next token from the exact model's, and its perplexity.

    KL in nats a token, averaged over the text: 0 where both give every token the same probability. Perplexity: e to the
    mean of -log p of the tokens that the text has, in fp32. Raises ValueError for a text of fewer than two tokens.
    """
    import pandas as pd

    if short := [name for name, token_ids in texts.items() if len(token_ids) < 2]:
        raise ValueError(f"texts must have at least two tokens each, got fewer in {', '.join(short)}")
    expected = {name: log_probs(exact, token_ids) for name, token_ids in texts.items()}
    rows: list[dict[str, Any]] = []
    for model_name, model in ({"as it is": exact} | dict(models)).items():
        rows.append({"model": model_name})
        for name, token_ids in texts.items():
            got = log_probs(model, token_ids)
            rows[-1][f"KL, {name}"] = float(F.kl_div(got, expected[name], log_target=True, reduction="batchmean"))
            rows[-1][f"perplexity, {name}"] = float(F.nll_loss(got[:-1], torch.tensor(token_ids[1:])).exp())
    live = [column for column in rows[0] if column != "model"]
    formats = {column: "{:,.1f}" if column.startswith("perplexity") else "{:.4f}" for column in live}
    lengths = ", ".join(f"{name}: {len(token_ids)} tokens" for name, token_ids in texts.items())
    return Table(pd.DataFrame(rows), exact=["model"], live=live, formats=formats, title=lengths)


def log_probs(model: Model, token_ids: list[int]) -> Tensor:
    """[N, V] float32: of what may follow each token of the text."""
    return reference_logits(model, token_ids).float().log_softmax(-1)


def round_inputs(model: Model, group: int) -> Model:
    """The model itself, whose linear layers from now on see their inputs rounded to 8 bits, each `group` neighbouring
    values of a row with a scale of their own (a whole row, where it is shorter)."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda layer, args: (_rounded(args[0], group),))
    return model


def _rounded(x: Tensor, group: int) -> Tensor:
    parts = []
    for part in x.split(group, dim=-1):
        step = (part.abs().amax(-1, keepdim=True) / LEVELS).clamp_min(torch.finfo(x.dtype).tiny)
        parts.append((part / step).round() * step)
    return torch.cat(parts, dim=-1)
