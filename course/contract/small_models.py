"""Small models in which a wrong cache shows at once, and the cached answers of the two oracles about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from roseinfer.models import GPT2, Model, ModelConfig, load_model, random_model, shape_of
from roseinfer.reference import hf_generate, reference_generate, reference_logits

LLAMAS = ("llama", "qwen2", "qwen3")  # Mistral computes what Llama does


def small_model(num_kv_heads: int = 4, seed: int = 1, vocab_size: int = 97) -> GPT2:
    """Make a two-layer GPT-2 with weights so large that attention and positions decide which token comes next."""
    return _gpt2(seed, vocab_size, max_model_len=192, num_layers=2, num_heads=4, num_kv_heads=num_kv_heads, head_dim=8)


def _gpt2(seed: int = 1, vocab_size: int = 97, **sizes: Any) -> GPT2:
    config = ModelConfig(architecture="gpt2", vocab_size=vocab_size, hidden_size=32, intermediate_size=64, **sizes)
    model = random_model(config, seed)
    assert isinstance(model, GPT2)
    for p in model.parameters():
        if p.dim() > 1:
            p.mul_(12)
    return model


def small_llama(architecture: str, seed: int = 1, **changes: Any) -> Model:
    """Make random:tiny-{architecture} with `changes` to its config and large weights; no bias is 0, no norm is 1."""
    model = random_model(replace(shape_of(f"random:tiny-{architecture}"), **changes), seed)
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.dim() > 1:
            p.mul_(12)
        else:
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.3)
    return model


def soft_model(max_model_len: int, num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> Model:
    """Make a GPT-2 that attends to all tokens almost equally, so that one lost or doubled token in thousands shows.

    In small_model attention is sharp: a wrong token with a small weight would not be seen among so many.
    """
    model = _gpt2(
        max_model_len=max_model_len,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )
    for name, p in model.named_parameters():
        if name.endswith("c_attn.weight"):
            p[: (num_heads + num_kv_heads) * head_dim] *= 0.5  # q and k: scores of about +-0.5
    return model


def prompts_of(lengths: tuple[int, ...] | list[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Draw random prompts of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in lengths]


# Shapes that the models above do not have: (num_layers, num_heads, num_kv_heads, head_dim). Theirs are powers of two,
# or what GPT-2 has, so that is what hidden assumptions rest on.
SHAPES = {
    "groups of 3": (3, 6, 2, 10),
    "groups of 5": (1, 5, 1, 8),
    "groups of 7": (2, 14, 2, 5),  # as Qwen2-0.5B, with an odd head_dim
    "groups of 8": (1, 16, 2, 4),
    "one of everything": (1, 1, 1, 2),  # where a squeeze takes away too much
    "5 heads of 12": (2, 5, 5, 12),
    "72 heads over 24": (1, 72, 24, 4),
    "heads of 136": (1, 3, 1, 136),
    "50 layers": (50, 2, 1, 4),
}
ODD_LENGTH = 45  # max_model_len of these: no multiple of any usual block size
LONG, LONGEST = 4_211, 33_003
MANY_IDS = "66,000 token ids"

MAKERS: dict[str, Callable[[], Model]] = {
    "gpt2": small_model,
    "gpt2, 2 KV heads": lambda: small_model(num_kv_heads=2),
    "gpt2, 1 KV head": lambda: small_model(num_kv_heads=1),
    **{family: partial(small_llama, family) for family in LLAMAS},
    "tiny": lambda: load_model("tiny"),
    "random:gpt2": lambda: load_model("random:gpt2"),
}
SMALL = tuple(name for name in MAKERS if name not in ("tiny", "random:gpt2"))  # those that a search draws from
MAKERS |= {name: lambda shape=shape: soft_model(ODD_LENGTH, *shape) for name, shape in SHAPES.items()} | {
    "two layers": lambda: soft_model(256, 2, 4, 4, 8),
    "long": lambda: soft_model(LONG, 1, 2, 1, 8),
    MANY_IDS: lambda: small_model(vocab_size=66_000),
    "longest": lambda: soft_model(LONGEST, 1, 1, 1, 4),
}


@cache
def model_of(name: str, device: str) -> Model:
    """Return the model of that name in MAKERS, in fp32. It is shared, so change nothing in it."""
    return MAKERS[name]().to(device)


@cache
def prompts_for(name: str, lengths: tuple[int, ...]) -> list[list[int]]:
    return prompts_of(lengths, model_of(name, "cpu").config.vocab_size)


@cache
def expected(name: str, lengths: tuple[int, ...], max_tokens: int, device: str) -> list[list[int]]:
    """Return the reference's greedy tokens after each prompt of prompts_for(name, lengths)."""
    return reference_generate(model_of(name, device), prompts_for(name, lengths), max_tokens)


@cache
def expected_by_transformers(name: str, lengths: tuple[int, ...], max_tokens: int, device: str) -> list[list[int]]:
    return hf_generate(model_of(name, device), prompts_for(name, lengths), max_tokens)


@cache
def text_of(name: str, length: int, seed: int = 0) -> tuple[int, ...]:
    """Draw a text of random tokens for a sequence to follow."""
    return tuple(prompts_of((length,), model_of(name, "cpu").config.vocab_size, seed)[0])


@lru_cache(maxsize=1_000)
def text_logits(name: str, text: tuple[int, ...], device: str) -> Tensor:
    """Return the reference's logits [N, V], one row for each token of the text, from one forward."""
    return reference_logits(model_of(name, device), list(text))


@cache
def half_model(name: str, device: str, dtype: torch.dtype) -> Model:
    return MAKERS[name]().to(device, dtype)


@cache
def half_logits(name: str, text: tuple[int, ...], device: str, dtype: torch.dtype) -> Tensor:
    return reference_logits(half_model(name, device, dtype), list(text))


@lru_cache(maxsize=10_000)
def last_logits(name: str, token_ids: tuple[int, ...], device: str) -> Tensor:
    """Return the reference's logits [V] after the last of token_ids."""
    return reference_logits(model_of(name, device), list(token_ids))[-1]
