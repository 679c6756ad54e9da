"""Logits to token ids: greedy, temperature, top-k, top-p (nucleus sampling: Holtzman et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.sequence import SamplingParams, Sequence


def sample(logits: Tensor, seqs: list[Sequence]) -> list[int]:
    """One token id a row of logits [B, V]; row i is chosen by seqs[i].params.

    A row with a seed depends on that row's logits, its seed and its length alone, so a request gets the same tokens
    whatever else is in the batch, and again when it is recomputed. Raises ValueError for a row count that does not
    match, or for logits that are not numbers.
    """
    if logits.dim() != 2 or logits.size(0) != len(seqs):
        raise ValueError(f"logits must be [B, V] with B={len(seqs)} sequences, got shape {tuple(logits.shape)}")
    tokens = logits.argmax(dim=-1).tolist()
    drawn = [row for row, seq in enumerate(seqs) if seq.params.temperature > 0]
    if drawn:
        probs = probabilities(logits[drawn], [seqs[row].params for row in drawn])
        for row, row_probs in zip(drawn, probs, strict=True):
            tokens[row] = _draw(row_probs, seqs[row])
    return tokens


def probabilities(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """The distribution that each row is drawn from: logits [B, V] -> [B, V] fp32, rows sum to 1.

    Order of the filters: temperature, then top-k, then top-p over what top-k left. A banned token has probability
    exactly 0. Ties at the top-k border are broken by the sort, so exactly top_k tokens stay. All temperatures > 0.
    """
    temperature = logits.new_tensor([p.temperature for p in params], dtype=torch.float32)[:, None]
    probs = torch.softmax(logits.float() / temperature, dim=-1)
    if not torch.isfinite(probs).all():
        raise ValueError("logits must be finite to sample from them, got NaN or infinity")
    if all(p.top_k == 0 and p.top_p == 1 for p in params):
        return probs
    top_k = torch.tensor([p.top_k or logits.size(-1) for p in params], device=logits.device)[:, None]
    top_p = torch.tensor([p.top_p for p in params], device=logits.device)[:, None]
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.size(-1), device=logits.device)
    ordered = ordered.masked_fill(rank >= top_k, 0.0)
    ordered /= ordered.sum(dim=-1, keepdim=True)
    # A token stays while the mass before it is below top_p: the first one always does.
    mass_before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill((mass_before >= top_p) & (top_p < 1), 0.0)
    ordered /= ordered.sum(dim=-1, keepdim=True)
    return torch.zeros_like(probs).scatter(1, order, ordered)


def _draw(probs: Tensor, seq: Sequence) -> int:
    """A token from probs [V]. The generator is made from (seed, length), so nothing has to survive between steps."""
    generator = None
    if seq.params.seed is not None:
        generator = torch.Generator(probs.device).manual_seed(_mix(seq.params.seed, len(seq)))
    return int(torch.multinomial(probs, 1, generator=generator))


def _mix(seed: int, position: int) -> int:
    """splitmix64 (Steele et al., 2014): neighbouring seeds and positions give unrelated 63-bit seeds."""
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
