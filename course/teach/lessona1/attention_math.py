"""Attention as exercises a1.1 to a1.3 ask for it, in plain operations; and what typical mistakes would give."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

UNMASKED = "every row sees all tokens, also those after it: row i may only see columns 0 to i"
UNSCALED = "the scores are not scaled: divide them by the square root of D"
OF_KEYS = "the weighted sum is of keys, it should be of values"


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Compute the scaled scores [..., T, T] of q [..., T, D] and k [..., T, D]."""
    return q @ k.transpose(-1, -2) / q.size(-1) ** 0.5


def seen(q: Tensor) -> Tensor:
    """Make the mask [T, T]: True where row i may see column j, that is for j <= i."""
    return torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).tril()


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention: q, k and v [H, T, D] -> [H, T, D]."""
    return masked_with(-torch.inf)(q, k, v)


def masked_with(filler: float) -> Attend:
    return lambda q, k, v: scores_of(q, k).masked_fill(~seen(q), filler).softmax(-1) @ v


def _hidden_where_zero(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = scores_of(q, k).tril()
    return scores.masked_fill(scores == 0, -torch.inf).softmax(-1) @ v


def _scaled_by(dim: int) -> Attend:
    """Make a causal attention whose scores are divided by the square root of another size of q than D."""
    return lambda q, k, v: (q @ k.mT / q.size(dim) ** 0.5).masked_fill(~seen(q), -torch.inf).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention with grouped KV heads: q [H, T, D], k and v [H_kv, T, D] -> [H, T, D]."""
    return causal(q, *(_to_neighbours(x, len(q)) for x in (k, v)))


def _to_neighbours(x: Tensor, num_heads: int) -> Tensor:
    return x.repeat_interleave(num_heads // len(x), dim=0)


def _in_turns(x: Tensor, num_heads: int) -> Tensor:
    return x.repeat(num_heads // len(x), 1, 1)


def one_query(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute the attention of one query: q [D], keys and values [T, D] -> [D]."""
    return (keys @ q / len(q) ** 0.5).softmax(0) @ values


def _of_one(weigh: Callable[[Tensor], Tensor]) -> Attend:
    """Make an attention of one query with other weights than the softmax of the scores."""
    return lambda q, keys, values: weigh(keys @ q / len(q) ** 0.5) @ values


ONE_QUERY_MISTAKES: dict[str, Attend] = {
    UNSCALED: lambda q, keys, values: (keys @ q).softmax(0) @ values,
    "the scores are divided by D, not by its square root": lambda q, k, v: (k @ q / len(q)).softmax(0) @ v,
    "the scores are divided by the square root of T; D, the length of a key, is what counts": (
        lambda q, k, v: (k @ q / len(k) ** 0.5).softmax(0) @ v
    ),
    OF_KEYS: lambda q, keys, values: one_query(q, keys, keys),
    "the scores themselves are the weights: a softmax makes them positive, with a sum of 1": _of_one(lambda s: s),
    "the scores are divided by their sum: a softmax takes exp of each score first": _of_one(lambda s: s / s.sum()),
    "exp of the scores is not divided by its sum": _of_one(torch.exp),
    "all values get the same weight: the scores are not used": _of_one(lambda s: torch.ones_like(s) / len(s)),
    "only the value with the largest score is returned: a softmax mixes all of them": _of_one(
        lambda s: torch.nn.functional.one_hot(s.argmax(), len(s)).to(s.dtype)
    ),
}
CAUSAL_MISTAKES: dict[str, Attend] = {
    UNMASKED: lambda q, k, v: scores_of(q, k).softmax(-1) @ v,
    "the mask also hides a token from itself: row i sees columns 0 to i, with i": (
        lambda q, k, v: scores_of(q, k).masked_fill(~seen(q).tril(-1), -torch.inf).softmax(-1) @ v
    ),
    "the mask is upside down: row i sees columns i to T - 1, it should see 0 to i": (
        lambda q, k, v: scores_of(q, k).masked_fill(~seen(q).T, -torch.inf).softmax(-1) @ v
    ),
    "masked scores are 0, and exp(0) is 1: only a score of -inf gets weight 0": masked_with(0.0),
    "masked scores are a finite number, and real scores can be lower: only -inf always gets weight 0": masked_with(
        -1e4
    ),
    "masked scores are -100,000, and a real score can be as low: only -inf always gets weight 0": masked_with(-1e5),
    "a finite number is added to hidden scores, and real ones can be lower still: only -inf always gets weight 0": (
        lambda q, k, v: (scores_of(q, k) + -1e4 * ~seen(q)).softmax(-1) @ v
    ),
    "a visible score of 0 is hidden, too: the mask comes from the positions, not from the scores": _hidden_where_zero,
    "the mask comes after the softmax, so the weights of a row no longer add up to 1": (
        lambda q, k, v: (scores_of(q, k).softmax(-1) * seen(q)) @ v
    ),
    "the softmax runs down the columns: the weights of one row add up to 1, so it runs along dim=-1": (
        lambda q, k, v: scores_of(q, k).masked_fill(~seen(q), -torch.inf).softmax(-2) @ v
    ),
    "the softmax runs over the heads: the weights of one row add up to 1, so it runs along dim=-1": (
        lambda q, k, v: scores_of(q, k).masked_fill(~seen(q), -torch.inf).softmax(0) @ v
    ),
    UNSCALED: lambda q, k, v: causal(q * q.size(-1) ** 0.5, k, v),
    "the scores are divided by D, not by its square root": lambda q, k, v: causal(q * q.size(-1) ** -0.5, k, v),
    "the scores are divided by the square root of H: D is q.shape[-1]": _scaled_by(0),
    "the scores are divided by the square root of T: D is q.shape[-1]": _scaled_by(1),
    "the mask is the wrong way round: masked_fill replaces where the mask is True, so give it ~visible": (
        lambda q, k, v: scores_of(q, k).masked_fill(seen(q), -torch.inf).softmax(-1) @ v
    ),
    "0 * -inf is NaN: use masked_fill or torch.where": (
        lambda q, k, v: (scores_of(q, k) + ~seen(q) * -torch.inf).softmax(-1) @ v
    ),
    OF_KEYS: lambda q, k, v: causal(q, k, k),
}
GROUPED_MISTAKES: dict[str, Attend] = {
    "query head h reads KV head h % H_kv, as with repeat: neighbours share a KV head, so it is h // (H // H_kv)": (
        lambda q, k, v: causal(q, _in_turns(k, len(q)), _in_turns(v, len(q)))
    ),
    "the keys are those of KV head h // (H // H_kv), and the values are those of another one": (
        lambda q, k, v: causal(q, _to_neighbours(k, len(q)), _in_turns(v, len(q)))
    ),
    "the values are those of KV head h // (H // H_kv), and the keys are those of another one": (
        lambda q, k, v: causal(q, _in_turns(k, len(q)), _to_neighbours(v, len(q)))
    ),
    "every query head reads KV head 0": lambda q, k, v: grouped(q, k[:1], v[:1]),
    "every query head reads the mean of all KV heads": (
        lambda q, k, v: grouped(q, k.mean(0, keepdim=True), v.mean(0, keepdim=True))
    ),
    UNMASKED: lambda q, k, v: scores_of(q, _to_neighbours(k, len(q))).softmax(-1) @ _to_neighbours(v, len(q)),
    UNSCALED: lambda q, k, v: grouped(q * q.size(-1) ** 0.5, k, v),
}
