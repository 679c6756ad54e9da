"""Shapes that "random:..." specs name, and seeded weights for them: times do not depend on the values."""

from __future__ import annotations

from typing import Any

import torch

from roseinfer.hardware import available_bytes

from .config import ModelConfig
from .gpt2 import GPT2
from .llama import Llama
from .model import Model
from .rope import Rope

ARCHITECTURES: dict[str, type[Model]] = {
    "gpt2": GPT2,
    "llama": Llama,
    "mistral": Llama,
    "qwen2": Llama,
    "qwen3": Llama,
}
RANDOM_SEED = 0

_TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_model_len": 256,
    "norm_eps": 1e-6,
    "rope": Rope(),
}
_QWEN2_5: dict[str, Any] = {
    "architecture": "qwen2",
    "max_model_len": 32768,
    "norm_eps": 1e-6,
    "eos_token_id": 151645,
    "qkv_bias": True,
    "rope": Rope(rope_theta=1e6),
}
RANDOM_SHAPES = {
    # GPT-2 small. The first post measured an untrained checkpoint of this shape.
    "gpt2": ModelConfig(
        architecture="gpt2",
        vocab_size=50257,
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        num_kv_heads=12,
        head_dim=64,
        intermediate_size=3072,
        max_model_len=1024,
        eos_token_id=50256,
    ),
    # Post 002's model: LLaMA 2 with the context length that the post configures.
    "llama-7b": ModelConfig(
        architecture="llama",
        vocab_size=32000,
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        head_dim=128,
        intermediate_size=11008,
        max_model_len=4096,
        norm_eps=1e-5,
        eos_token_id=2,
        rope=Rope(),
        tie_embeddings=False,
    ),
    "qwen2.5-0.5b": ModelConfig(
        **_QWEN2_5,
        vocab_size=151936,
        hidden_size=896,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=4864,
    ),
    "qwen2.5-7b": ModelConfig(
        **_QWEN2_5,
        vocab_size=152064,
        hidden_size=3584,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        intermediate_size=18944,
        tie_embeddings=False,
    ),
    "tiny-llama": ModelConfig(architecture="llama", **_TINY, tie_embeddings=False),
    "tiny-qwen2": ModelConfig(architecture="qwen2", **_TINY, qkv_bias=True),
    "tiny-mistral": ModelConfig(architecture="mistral", **_TINY),
    "tiny-qwen3": ModelConfig(architecture="qwen3", **_TINY | {"head_dim": 32}, qk_norm=True),
}


def empty_model(config: ModelConfig) -> Model:
    """Return a model of that shape on the meta device: parameters with shapes and names, and no memory.

    Raises ValueError for an unknown architecture.
    """
    if config.architecture not in ARCHITECTURES:
        raise ValueError(f"architecture={config.architecture!r} is not supported, only {', '.join(ARCHITECTURES)}")
    with torch.device("meta"):
        return ARCHITECTURES[config.architecture](config)


def random_model(
    config: ModelConfig,
    seed: int = RANDOM_SEED,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    draw_on: str | torch.device = "cpu",
) -> Model:
    """Return a model with seeded weights, initialised as in GPT-2.

    Weights are normal with std 0.02, those of norms 1, biases 0. They are drawn in fp32, one parameter after another,
    then cast and moved: drawn on the CPU they are the same on every machine. draw_on: a GPU needs seconds for billions
    of weights, where a CPU takes minutes.

    Raises ValueError, before anything is allocated, when the weights are larger than the memory that is available on
    the device.
    """
    model = empty_model(config)
    check_fits(model, torch.device(device), dtype)
    generator = torch.Generator(draw_on).manual_seed(seed)
    weights = {}
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            weight = torch.zeros(p.shape)
        elif p.dim() == 1:
            weight = torch.ones(p.shape)
        else:
            weight = torch.empty(p.shape, device=draw_on).normal_(std=0.02, generator=generator)
        weights[name] = weight.to(device=device, dtype=dtype)
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False).eval()


def check_fits(model: Model, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError if the weights are larger than the memory that is available on the device."""
    needed, free = sum(p.numel() for p in model.parameters()) * dtype.itemsize, available_bytes(device)
    if free is not None and needed > free:
        raise ValueError(f"the weights take {needed:,} bytes in {dtype}, and {device} has {free:,} available")
