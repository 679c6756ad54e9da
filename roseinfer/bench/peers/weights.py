"""A model as the peers' scripts read it: its shape as JSON, and its weights in fp32 under roseinfer's own names."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from roseinfer.models import Model


def write_model(model: Model, folder: Path) -> None:
    """Write a model for the peers. Raises ValueError for an architecture that the scripts do not convert."""
    if model.config.architecture != "gpt2":
        raise ValueError(f"peers are given GPT-2 alone, not {model.config.architecture}")
    weights = {name: weight.to("cpu", torch.float32).contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "weights.safetensors")
    (folder / "shape.json").write_text(json.dumps(asdict(model.config)), encoding="utf-8")
