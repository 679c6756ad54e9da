"""CatAppend: the draft of lesson 08 without its four mistakes. K and V of a sequence are one tensor each per layer.

Exercise 08.1 asks for it, so the notebook shows it after the exercise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.models import Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage


class CatStep:
    """Attention of one decode step, sequence by sequence. Keeps each layer's new k and v."""

    def __init__(self, caches: list[Any]) -> None:
        self.caches = caches  # caches[i][layer] = [keys, values] of sequence i, each [H_kv, T, D]
        self.new: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.new.append((k, v))
        rows = []
        for i, cache in enumerate(self.caches):
            keys, values = cache[layer]
            keys = torch.cat([keys, k[i].unsqueeze(1)], dim=1)
            values = torch.cat([values, v[i].unsqueeze(1)], dim=1)
            query = q[i].unsqueeze(1)  # [H, 1, D]
            row = F.scaled_dot_product_attention(query[None], keys[None], values[None], enable_gqa=True)
            rows.append(row[0, :, 0])
        return torch.stack(rows)


class CatAppend(Stage):
    """Keys and values of each sequence and layer in one tensor each, [H_kv, T, D]; a new token is appended by cat."""

    name = "CatAppend"

    def __init__(self, model: Model, **sizes: int) -> None:
        super().__init__(model, **sizes)
        self.caches: dict[int, list[list[Tensor]]] = {}

    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        self.caches.setdefault(seq.seq_id, []).append([k.transpose(0, 1), v.transpose(0, 1)])

    def build(self, seqs: list[Sequence]) -> CatStep:
        return CatStep([self.caches[seq.seq_id] for seq in seqs])

    def append(self, seqs: list[Sequence], step: CatStep) -> None:
        for layer, new in enumerate(step.new):
            for i, seq in enumerate(seqs):
                cache = self.caches[seq.seq_id][layer]
                for kind, token in enumerate(new):  # k, then v
                    cache[kind] = torch.cat([cache[kind], token[i].unsqueeze(1)], dim=1)

    def free(self, seq: Sequence) -> None:
        super().free(seq)  # first: it refuses a sequence that is not held
        self.caches.pop(seq.seq_id, None)  # a prefill that failed in layer 0 has none
