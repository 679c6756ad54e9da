"""A stage that keeps every promise, as plain as it can be: what wrong ones are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from roseinfer.stage import Stage


class Right(Stage):
    """For each sequence and layer one tensor of keys and one of values [H_kv, T, D]."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.caches = {}

    def write_prompt(self, seq, layer, k, v):
        self.caches.setdefault(seq.seq_id, []).append([k.transpose(0, 1).clone(), v.transpose(0, 1).clone()])

    def build(self, seqs):
        return RightStep([self.caches[seq.seq_id] for seq in seqs])

    def append(self, seqs, step):
        grown = [[step.grown(i, layer) for layer in range(len(step.new))] for i in range(len(seqs))]
        for seq, layers in zip(seqs, grown, strict=True):  # behind the last operation that may fail
            for cache, pair in zip(self.caches[seq.seq_id], layers, strict=False):
                cache[:] = pair

    def free(self, seq):
        super().free(seq)
        self.caches.pop(seq.seq_id, None)


class RightStep:
    def __init__(self, caches):
        self.caches, self.new = caches, []

    def __call__(self, layer, q, k, v):
        self.new.append((k, v))
        return torch.stack([self.attend(cache[layer], q[i], k[i], v[i]) for i, cache in enumerate(self.caches)])

    def grown(self, i, layer):
        pairs = zip(self.caches[i][layer], self.new[layer], strict=True)
        return [torch.cat([old, new[i, :, None]], dim=1) for old, new in pairs]

    def attend(self, cache, q, k, v):
        keys, values = (torch.cat([old, new[:, None]], dim=1) for old, new in zip(cache, (k, v), strict=True))
        return F.scaled_dot_product_attention(q[:, None], keys, values, enable_gqa=True)[:, 0]
