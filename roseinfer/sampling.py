"""Logits to token ids: greedy, temperature, top-k, top-p (nucleus sampling: Holtzman et al., 2019)."""

from __future__ import annotations

from functools import partial
from math import isfinite

import torch
from torch import Tensor

from roseinfer.sequence import SamplingParams, Sequence

NO_TOKEN = -1  # for a row whose logits are not finite, where raising would wait for the device


def sample(logits: Tensor, seqs: list[Sequence]) -> list[int]:
    """Choose one token id for each row of logits [B, V]; row i is chosen by seqs[i].params.

    A row with a seed depends on that row's logits, its seed and its length alone, so a request gets the same tokens
    whatever else is in the batch, and again when it is recomputed. Raises ValueError for a row count that does not
    match, or for a row with NaN or infinity in it; -inf marks a masked token and is allowed while another is finite.
    """
    if logits.dim() != 2 or logits.size(0) != len(seqs):
        raise ValueError(f"logits must be [B, V] with B={len(seqs)} sequences, got shape {tuple(logits.shape)}")
    largest, greedy = logits.max(dim=-1)  # of equals, the first
    _require_numbers(largest)
    tokens = greedy.tolist()
    drawn = [row for row, seq in enumerate(seqs) if seq.params.temperature > 0]
    if drawn:
        probs = probabilities(logits[drawn], [seqs[row].params for row in drawn])
        for row, row_probs in zip(drawn, probs, strict=True):
            tokens[row] = _draw(row_probs, seqs[row])
    return tokens


def probabilities(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """Return the distribution that each row is drawn from: logits [B, V] -> [B, V] fp32, rows sum to 1.

    Order of the filters: temperature, then top-k, then top-p over what top-k left. A banned token has probability
    exactly 0. Ties at the top-k border are broken by the sort, so exactly top_k tokens stay. All temperatures > 0.
    A row is the same to the last bit whatever rows are beside it.
    """
    logits = logits.float()
    largest = logits.amax(dim=-1, keepdim=True)
    _require_numbers(largest)
    filtered = [row for row, p in enumerate(params) if is_filtered(p)]
    rows = torch.tensor(filtered, device=logits.device) if filtered else None
    column = partial(torch.tensor, device=logits.device)
    top_k = [min(params[row].top_k, logits.size(-1)) for row in filtered]
    top_p = [params[row].top_p for row in filtered]
    temperature = column([finite_temperature(p) for p in params])
    return distribution(logits - largest, temperature, rows, column(top_k), column(top_p))


def is_filtered(params: SamplingParams) -> bool:
    """Whether top-k or top-p bans tokens."""
    return params.top_k > 0 or params.top_p < 1


def finite_temperature(params: SamplingParams) -> float:
    """Return the temperature, limited to what float32 can tell from 0 and from infinity."""
    return finite(params.temperature)


def finite(factor: float) -> float:
    """Return a factor above 0, limited to what float32 can tell from 0 and from infinity."""
    limits = torch.finfo(torch.float32)
    return float(min(max(factor, limits.tiny), limits.max))


def distribution(logits: Tensor, temperature: Tensor, filtered: Tensor | None, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Compute `probabilities` from tensors alone and without reading any of them.

    logits [B, V] in fp32, the largest of each row 0, so that no temperature [B], however low, makes an infinity of it.
    top_k [F] and top_p [F] belong to the rows `filtered` [F] (None: no row is).
    """
    probs = torch.softmax(logits / temperature[:, None], dim=-1)
    if filtered is not None:
        probs[filtered] = keep_top(probs[filtered], top_k[:, None], top_p[:, None])
    return probs


def exponential_race(probs: Tensor, noise: Tensor) -> Tensor:
    """Draw a token for each row of probs [B, V]: argmax of probs / noise, with exponentially distributed noise [B, V].

    When clocks ring at rates p, clock i is the first with probability p[i]; noise / p is when each one rings. This is
    what torch.multinomial does for one draw, without its checks.
    """
    return (probs / noise).argmax(dim=-1)


def _require_numbers(largest: Tensor) -> None:
    """Raise ValueError unless the largest logit of each row is finite; a NaN in a row counts as its largest."""
    if not all(isfinite(logit) for logit in largest.flatten().tolist()):
        raise ValueError("logits must be finite to sample from them, got NaN or infinity")


def keep_top(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return probs [B, V] with top_k [B, 1] (0 keeps all) and then top_p [B, 1] applied to each row; rows sum to 1."""
    vocab_size = probs.size(-1)
    top_k = torch.where(top_k > 0, top_k, vocab_size)
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=probs.device)
    # Masses by cumsum, which adds up each row on its own: how sum splits its work depends on the number of rows.
    mass = ordered.masked_fill(rank >= top_k, 0.0).cumsum(dim=-1)
    # A token stays while the mass before it is below top_p: the first one always does.
    mass_before = (mass - ordered) / mass[:, -1:]
    banned = (rank >= top_k) | ((mass_before >= top_p) & (top_p < 1) & (rank > 0))
    ordered = ordered.masked_fill(banned, 0.0)
    ordered /= ordered.cumsum(dim=-1)[:, -1:]
    return torch.zeros_like(probs).scatter(1, order, ordered)


def _draw(probs: Tensor, seq: Sequence) -> int:
    """Draw a token from probs [V]."""
    return int(torch.multinomial(probs, 1, generator=generator_of(seq, probs.device)))


def generator_of(seq: Sequence, device: torch.device, length: int | None = None) -> torch.Generator | None:
    """Return a generator made from (seed, length), so nothing has to survive between steps; None without a seed.

    length: the sequence's when the token is chosen, None for what it is now.
    """
    if seq.params.seed is None:
        return None
    return torch.Generator(device).manual_seed(_mix(seq.params.seed, len(seq) if length is None else length))


def _mix(seed: int, position: int) -> int:
    """Mix by splitmix64 (Steele et al., 2014): neighbouring seeds and positions give unrelated 63-bit seeds."""
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1
