"""Models and prompts that tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from roseinfer.models import GPT2, Model, ModelConfig, random_model, shape_of


def small_model(num_kv_heads: int = 4, seed: int = 1) -> GPT2:
    """Two layers whose weights are large enough that attention and positions decide which token comes next."""
    config = ModelConfig(
        architecture="gpt2", vocab_size=97, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=num_kv_heads,
        head_dim=8, intermediate_size=64, max_model_len=192,
    )  # fmt: skip
    model = random_model(config, seed)
    for p in model.parameters():
        if p.dim() > 1:
            p.mul_(12)
    return model


def small_llama(architecture: str, seed: int = 1, **changes: Any) -> Model:
    """random:tiny-{architecture} with `changes` to its config, and weights as above: no bias is 0, no norm is 1."""
    model = random_model(replace(shape_of(f"random:tiny-{architecture}"), **changes), seed)
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.dim() > 1:
            p.mul_(12)
        else:
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.3)
    return model


def prompts_of(lengths: list[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in lengths]


def assert_logits_close(actual: Tensor, expected: Tensor) -> None:
    """Within 1e-4, and where logits are large within 1e-4 of the largest: fp32 rounding grows with them."""
    assert actual.shape == expected.shape
    error, allowed = (actual - expected).abs().max(), 1e-4 * max(1.0, float(expected.abs().max()))
    assert error < allowed, f"logits differ by {error:.1e}, allowed {allowed:.1e}"
