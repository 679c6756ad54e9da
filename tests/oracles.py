"""Models and prompts that tests share."""

from __future__ import annotations

import torch

from roseinfer.models import GPT2, ModelConfig, random_model


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


def prompts_of(lengths: list[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in lengths]
