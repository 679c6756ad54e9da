"""Recompute and RecomputeBatch: no cache at all, as stages, so that a race can show what the cache gains."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.profiling import span
from roseinfer.reference import reference_logits
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage


class Recompute(Stage):
    """Keeps no cache: each step computes the whole text of every sequence again, one after another."""

    def decode(self, seqs: list[Sequence]) -> Tensor:
        with span("roseinfer.decode_step_sessions.total"), span("roseinfer.model.forward"):
            logits = self.recompute([seq.token_ids for seq in seqs])
        for seq in seqs:
            seq.num_cached_tokens += 1
        return logits

    def recompute(self, texts: list[list[int]]) -> Tensor:
        return torch.stack([reference_logits(self.model, text)[-1] for text in texts])

    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None: ...
    def build(self, seqs: list[Sequence]) -> Any: ...
    def append(self, seqs: list[Sequence], step: Any) -> None: ...


class RecomputeBatch(Recompute):
    """Computes all texts again in one forward, padded at the end, which causal attention never looks at."""

    @torch.inference_mode()
    def recompute(self, texts: list[list[int]]) -> Tensor:
        longest = max(map(len, texts))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=self.model.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [B * T, H, D]
            q, k, v = (x.unflatten(0, ids.shape).transpose(1, 2) for x in (q, k, v))  # [B, H, T, D]
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1)

        positions = torch.arange(longest, device=ids.device).repeat(len(texts))
        logits = self.model.logits(self.model(ids.flatten(), positions, attend)).unflatten(0, ids.shape)
        return logits[range(len(texts)), [len(text) - 1 for text in texts]]
