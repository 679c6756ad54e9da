"""record_heads: q, k and v of every layer in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.arguments import require_count
from roseinfer.models import Model


@dataclass(frozen=True)
class Heads:
    """Heads of one layer: q [H, T, D], k and v [H_kv, T, D], with q and k as attention gets them."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def weights(self) -> Tensor:
        """Attention weights [H, T, T]: row i is token i's softmax over tokens 0 to i, and 0 after them."""
        k = self.k.repeat_interleave(len(self.q) // len(self.k), dim=0)
        scores = self.q @ k.transpose(1, 2) / self.q.size(-1) ** 0.5
        return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def require_words(words: Sequence[str], token_ids: list[int]) -> None:
    """Raise ValueError unless there is a word for each token."""
    if len(words) != len(token_ids):
        raise ValueError(f"words must have {len(token_ids)} entries, one for each token, got {len(words)}")


@torch.inference_mode()
def record_heads(model: Model, token_ids: list[int]) -> list[Heads]:
    """Compute one forward of a prompt and return what each layer's attention got, on the CPU.

    Raises ValueError for no tokens, for more than the model's positions and for a token outside its vocabulary.
    """
    c = model.config
    if not 1 <= len(token_ids) <= c.max_model_len:
        raise ValueError(f"token_ids must hold 1 to {c.max_model_len:,} tokens, got {len(token_ids):,}")
    for token in token_ids:
        require_count("each of token_ids", token, at_least=0, at_most=c.vocab_size - 1)
    recorded: list[Heads] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # [H, T, D]
        recorded.append(Heads(q.cpu(), k.cpu(), v.cpu()))
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)

    ids = torch.tensor(token_ids, device=model.device)
    model(ids, torch.arange(len(token_ids), device=model.device), attend)
    return recorded
