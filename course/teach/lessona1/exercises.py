"""Checkers of background notebook a1: attention of one query, the causal mask, grouped KV heads, and RoPE."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Call, Case, Comparison, Describe, draw, inputs
from ..exercises.exercise import register
from ..exercises.explain import explain_tensor
from ..exercises.solutions import solution
from ..exercises.tensor_checks import on_tensors
from ..exercises.wrong import Wrong


class ByHand(TorchFunctionMode):
    """A mode that refuses PyTorch's own attention. grouped_only: only where it is asked to share KV heads."""

    def __init__(self, grouped_only: bool = False) -> None:
        super().__init__()
        self.grouped_only = grouped_only

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_own = getattr(func, "__name__", "").startswith(F.scaled_dot_product_attention.__name__)  # or of torch.ops
        if is_own and (not self.grouped_only or (kwargs or {}).get("enable_gqa")):
            option = "enable_gqa of " if self.grouped_only else ""
            raise Wrong(f"that is {option}PyTorch's own F.scaled_dot_product_attention: write this part by hand")
        return func(*args, **(kwargs or {}))


def _by_hand(call: Call, **options: bool) -> Call:
    def call_by_hand(answer: Callable[..., Tensor], *case: Any) -> Tensor:
        with ByHand(**options):
            return call(answer, *case)

    return call_by_hand


# The inputs of a1.1 to a1.3. Kinds of cases, and the order in which they are told: as drawn; a query of zeros; each
# query's largest score LARGEST in size, of either sign; every score just above LOWEST; the first key's score LOWEST,
# those of later keys just below HIGH.
PLAIN, ZERO, LARGE, LOW, WIDE = range(0, 500, 100)
LARGEST, LOWEST, HIGH = 900, -100_000, 1_000
SAID = {
    PLAIN: "",
    ZERO: ", the last query is 0",
    LARGE: ", scores in the hundreds (exp overflows past 88)",
    LOW: f", every score near {LOWEST:,} (its exp is 0)",
    WIDE: f", scores of the first key near {LOWEST:,}, of later keys near {HIGH:,}",
}


def make_heads(num_heads: int, num_kv_heads: int, num_tokens: int, head_dim: int, kind: int) -> tuple[Tensor, ...]:
    """Make q [H, T, D], k and v [H_kv, T, D]: others for each kind, so that nothing can be kept by a shape.

    Low scores are exact in float32: whole numbers over the square root of D, which is 1, 2 or 4.
    """
    seed = 1000 * num_heads + 100 * num_kv_heads + 10 * num_tokens + head_dim + kind
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(num_heads, num_tokens, head_dim, generator=generator)
    k, v = torch.randn(2, num_kv_heads, num_tokens, head_dim, generator=generator)
    if kind == ZERO:
        q[:, -1] = 0
    if kind == LARGE:
        q *= LARGEST / scores_of(q, k).abs().amax(-1, keepdim=True)
    if kind in (LOW, WIDE):
        q, k = q.round().abs(), k.round().abs()
        q[..., 0], k[..., 0] = 1, LOWEST * head_dim**0.5
    if kind == WIDE:
        k[:, 1:] *= -1
        k[:, 1:, 0] = HIGH * head_dim**0.5
    return q, k, v


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Compute the scaled scores [H, T, T] of q [H, T, D] and k [H_kv, T, D]."""
    return q @ k.repeat_interleave(len(q) // len(k), 0).mT / q.size(-1) ** 0.5


def _make_one(*sizes: int) -> tuple[Tensor, ...]:
    """Make query [D], keys [T, D] and values [T, D]."""
    q, k, v = make_heads(1, 1, *sizes)
    return q[0, -1], k[0], v[0]


def _make_ungrouped(num_heads: int, *sizes: int) -> tuple[Tensor, ...]:
    return make_heads(num_heads, num_heads, *sizes)


def _describe(*names: str) -> Describe:
    """Describe a case by its sizes and the kind, which comes last."""
    return lambda *case: inputs(*names)(*case[:-1]) + SAID[case[-1]]


def _draw_sizes(rng: Random) -> tuple[int, int, int]:
    """Draw T, D and the kind."""
    return rng.randint(1, 7), rng.choice((1, 4, 16)), rng.choice((PLAIN, PLAIN, ZERO, LARGE, LOW, WIDE))


# a1.1

SOFTMAX = "scores.softmax(dim=0)"
ONE_QUERY_MISTAKES = {
    "the scores are not scaled: divide them by the square root of D": {" / query.size(0) ** 0.5": ""},
    "the weighted sum is of keys, it should be of values": {"@ values": "@ keys"},
    "exp of the scores is not divided by its sum": {SOFTMAX: "scores.exp()"},
    "exp of a large score overflows: subtract the largest score of the row first, as torch.softmax does": {
        SOFTMAX: "(scores.exp() / scores.exp().sum())"
    },
}
ONE_QUERY = [
    (1_100, 8, PLAIN),
    *draw(lambda rng: (rng.randint(1, 9), rng.choice((1, 2, 3, 4, 8, 16)), rng.choice((PLAIN, PLAIN, LARGE)))),
]
ATTEND = _by_hand(on_tensors(_make_one, "query", "keys", "values"))
ATTENDED = as_solved("a1.1", ONE_QUERY_MISTAKES, partial(explain_tensor, rtol=1e-3, atol=1e-4), ATTEND, torch=torch)
register("a1.1", Comparison(ONE_QUERY, ATTENDED, _describe("T", "D"), ATTEND))

# a1.2

# float32 near LOWEST is exact to 0.004: exp(s - logsumexp(s)) is right, and differs by as much
ROUNDED = partial(explain_tensor, rtol=5e-3, atol=1e-4)
MASKED = 'scores.masked_fill(~visible, float("-inf"))'
CAUSAL_MISTAKES = {
    "every row sees all tokens, also those after it: row i may only see columns 0 to i": {MASKED: "scores"},
    "the mask is the wrong way round: masked_fill replaces where the mask is True, so give it ~visible": {
        "~visible": "visible"
    },
    "masked scores are 0, and exp(0) is 1: only a score of -inf gets weight 0": {'float("-inf")': "0"},
    "masked scores are a finite number, and real scores can be lower: only -inf always gets weight 0": {
        'float("-inf")': "-1e4"
    },
    "the mask comes after the softmax, so the weights of a row no longer add up to 1": {
        f"{MASKED}.softmax(dim=-1)": "(scores.softmax(dim=-1) * visible)"
    },
    "0 * -inf is NaN: use masked_fill or torch.where": {MASKED: '(scores + ~visible * float("-inf"))'},
}
CAUSAL = [
    (1, 1_100, 4, PLAIN),  # longer than a mask that is made once
    *draw(lambda rng: (rng.randint(1, 4), *_draw_sizes(rng))),
]
ATTEND_ALL = _by_hand(on_tensors(_make_ungrouped, "q", "k", "v"))
ATTENDED_ALL = as_solved("a1.2", CAUSAL_MISTAKES, ROUNDED, ATTEND_ALL, torch=torch)
register("a1.2", Comparison(CAUSAL, ATTENDED_ALL, _describe("H", "T", "D"), ATTEND_ALL))

# a1.3

KEYS, VALUES = "k.repeat_interleave(group, dim=0)", "v.repeat_interleave(group, dim=0)"
GROUPED_MISTAKES = {
    "query head h reads KV head h % H_kv, as with repeat: neighbours share a KV head, so it is h // (H // H_kv)": {
        KEYS: "k.repeat(group, 1, 1)",
        VALUES: "v.repeat(group, 1, 1)",
    },
    "the keys are those of KV head h // (H // H_kv), and the values are those of another one": {
        VALUES: "v.repeat(group, 1, 1)"
    },
    "every query head reads KV head 0": {KEYS: "k[:1]", VALUES: "v[:1]"},
}


def _draw_grouped(rng: Random) -> Case:
    num_kv_heads = rng.randint(1, 4)
    return num_kv_heads * rng.randint(1, 4), num_kv_heads, *_draw_sizes(rng)


GROUPED = [(32, 2, 3, 4, PLAIN), *draw(_draw_grouped)]
ATTEND_GROUPED = _by_hand(on_tensors(make_heads, "q", "k", "v"), grouped_only=True)
CAUSAL_ATTENTION = solution("a1.2", torch=torch)
GROUPS = as_solved("a1.3", GROUPED_MISTAKES, ROUNDED, ATTEND_GROUPED, causal_attention=CAUSAL_ATTENTION)
register("a1.3", Comparison(GROUPED, GROUPS, _describe("H", "H_kv", "T", "D"), ATTEND_GROUPED))

# a1.4

ANGLES = "(positions[:, None] * frequencies)[:, None]"
ROPE_MISTAKES = {
    "the partner of number i is its neighbour, as in the paper; here it is number i + D / 2": {
        "x.chunk(2, dim=-1)": "(x[..., ::2], x[..., 1::2])",
        "torch.cat(": "torch.stack(",
        "], dim=-1)": "], dim=-1).flatten(-2)",
    },
    "it is turned the other way: the first number becomes a cos - b sin, the second b cos + a sin": {
        ANGLES: f"-{ANGLES}"
    },
    "b is computed from the new a: keep the old a": {"+ a *": "+ (a * angles.cos() - b * angles.sin()) *"},
    "rows are taken for positions: a token's angle comes from positions, which need not be 0, 1, 2": {
        "positions[:": "torch.arange(len(x))[:"
    },
    "pair i has frequency theta ** (-i / D), it should be theta ** (-2 * i / D)": {"-2 * torch": "-torch"},
    "theta is taken as 10,000, it is an argument": {"theta **": "10_000 **"},
}


def _make_turn(num_heads: int, head_dim: int, positions: list[int], theta: int) -> tuple[Any, ...]:
    """Make x [T, H, D], positions [T] and theta; others for each position and theta, so that nothing can be kept."""
    generator = torch.Generator().manual_seed(100 * num_heads + head_dim + sum(positions) + theta)
    x = torch.randn(len(positions), num_heads, head_dim, generator=generator)
    return x, torch.tensor(positions), float(theta)


def _draw_turn(rng: Random) -> Case:
    positions = [rng.randint(0, 300) for _ in range(rng.randint(1, 4))]
    return rng.randint(1, 4), 2 * rng.randint(1, 4), positions, rng.choice((100, 10_000, 1_000_000))


# A position past a table that is made once. Its frequency is 1, so that float32 has the angle exactly.
TURNS = [(1, 2, [10_000, 3], 10_000), *draw(_draw_turn)]
TURN = on_tensors(_make_turn, "x", "positions")
TURNED = as_solved("a1.4", ROPE_MISTAKES, partial(explain_tensor, rtol=1e-3, atol=1e-3), TURN, torch=torch)
register("a1.4", Comparison(TURNS, TURNED, inputs("H", "D", "positions", "theta"), TURN))
