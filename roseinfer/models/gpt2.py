"""GPT-2 over flat tokens (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .config import ModelConfig
from .model import Attend, Layer, Model, empty_embedding


class Attention(nn.Module):
    """Computes q, k and v in one matrix product, then the caller's attention and the output projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.head_counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        self.c_attn = nn.Linear(config.hidden_size, sum(self.head_counts) * config.head_dim)
        self.c_proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        heads = self.c_attn(x).view(x.size(0), -1, self.head_dim)
        q, k, v = heads.split(self.head_counts, dim=1)
        return self.c_proj(attend(layer, q, k, v).flatten(1))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        x = x + self.attn(self.ln_1(x), layer, attend)
        return x + self.mlp(self.ln_2(x))


class GPT2(Model):
    """GPT-2 with the HF checkpoint's module names: loading is a rename-free copy (hf_gpt2.py has the transposes)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.wte = empty_embedding(config.vocab_size, config.hidden_size)
        self.wpe = empty_embedding(config.max_model_len, config.hidden_size)
        self.h = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    @property
    def token_embedding(self) -> Any:
        return self.wte

    @property
    def parts(self) -> list[Layer]:
        blocks: Any = self.h
        return [
            Layer(h.ln_1, h.attn.c_attn, None, None, h.attn.c_proj, h.ln_2, h.mlp.c_fc, h.mlp.c_proj) for h in blocks
        ]

    @property
    def last_norm(self) -> Any:
        return self.ln_f

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self.wte(token_ids) + self.wpe(positions)
        for layer, block in enumerate(self.h):
            x = block(x, layer, attend)
        return self.ln_f(x)
