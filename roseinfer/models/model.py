"""Model: one forward signature for every architecture, with the attention left to the caller.

Tokens of all sequences lie one after another in one [N] batch, so prefill, decode and mixed batches share one
forward. What a token may look at is known only to the KV cache, hence `attend`:

    attend(layer: int, q[N, H, D], k[N, H_kv, D], v[N, H_kv, D]) -> [N, H, D]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Layer(NamedTuple):
    """What a layer computes with, under the same names in every architecture.

    In this order: norm_1, qkv, attention, out, which is added; norm_2, up, activation, down, which is added. q_norm and
    k_norm are None where heads have no norm. up: of the Llama family, gate and up.
    """

    norm_1: Any  # modules: nn.LayerNorm or nn.RMSNorm, and nn.Linear or a layout of models/linear.py
    qkv: Any
    q_norm: Any
    k_norm: Any
    out: Any
    norm_2: Any
    up: Any
    down: Any


def empty_embedding(num_rows: int, size: int) -> nn.Embedding:
    """Return a table whose rows are still to be loaded.

    nn.Embedding(num_rows, size) would draw them, and on the meta device torch imports its compiler for that: a second.
    """
    return nn.Embedding.from_pretrained(torch.empty(num_rows, size), freeze=False)


class Model(nn.Module, ABC):
    """A decoder-only transformer of the shape `config`.

    lm_head: the output matrix, hidden [N, C] -> logits [N, V]. None: it is the token embedding (tied).
    """

    lm_head: nn.Module | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        output = None if config.tie_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.register_module("lm_head", output)

    @property
    @abstractmethod
    def token_embedding(self) -> Any:
        """Turns token ids into hidden states: nn.Embedding, or a StoredEmbedding of models/linear.py."""

    @property
    @abstractmethod
    def parts(self) -> list[Layer]:
        """The layers, for a step that is computed by one function instead of by modules."""

    @property
    @abstractmethod
    def last_norm(self) -> Any:
        """The norm after the last layer."""

    @abstractmethod
    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Turn token_ids [N] and positions [N] into hidden states [N, C], normalised and ready for `logits`."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [N, C] into logits [N, V]."""
        return F.linear(hidden, self.token_embedding.weight) if self.lm_head is None else self.lm_head(hidden)

    @property
    def device(self) -> torch.device:
        return self.token_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.last_norm.weight.dtype
