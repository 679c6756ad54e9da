"""The Llama family over flat tokens: Llama (Touvron et al., 2023), Qwen2 and Qwen3, which differ in their config only.

RMSNorm before each half of a block (nn.RMSNorm computes in fp32 inside), rotary positions, SwiGLU. Matrices that share
their input are one: qkv_proj and gate_up_proj (see hf_llama.py for how they are joined and split).
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig
from .model import Attend, Layer, Model, empty_embedding
from .rope import Rotation, rotate


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.head_counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        width = config.num_heads * config.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.head_counts) * config.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=config.o_bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, layer: int, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        heads = self.qkv_proj(x).view(x.size(0), -1, self.head_dim)
        q, k, v = heads.split(self.head_counts, dim=1)
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        return self.o_proj(attend(layer, q, k, v).flatten(1))


class MLP(nn.Module):
    """SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MLP(config)

    def parts(self, qk_norm: bool) -> Layer:
        attn, mlp = self.self_attn, self.mlp
        q_norm, k_norm = (attn.q_norm, attn.k_norm) if qk_norm else (None, None)
        return Layer(
            self.input_layernorm, attn.qkv_proj, q_norm, k_norm, attn.o_proj,
            self.post_attention_layernorm, mlp.gate_up_proj, mlp.down_proj,
        )  # fmt: skip

    def forward(self, x: Tensor, layer: int, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), layer, cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(Model):
    """The Llama family. Raises ValueError for a config without rope."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.rope is None:
            raise ValueError(f"rope=None: architecture={config.architecture!r} needs rotary positions")
        self.embed_tokens = empty_embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.rotation = Rotation(config.rope, config.head_dim, config.max_model_len)

    @property
    def token_embedding(self) -> Any:
        return self.embed_tokens

    @property
    def parts(self) -> list[Layer]:
        blocks: Any = self.layers
        return [block.parts(self.config.qk_norm) for block in blocks]

    @property
    def last_norm(self) -> Any:
        return self.norm

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self.embed_tokens(token_ids)
        cos, sin = self.rotation(positions, self.dtype)
        for layer, block in enumerate(self.layers):
            x = block(x, layer, cos, sin, attend)
        return self.norm(x)
