"""Checkers of background notebook a1: attention of one query, the causal mask, grouped KV heads, and RoPE."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from roseinfer.models.rope import Rope, Rotation, rotate

from ..exercises.drawn import Call, Comparison, Expected, draw
from ..exercises.exercise import register
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .attention_math import (
    CAUSAL_MISTAKES,
    GROUPED_MISTAKES,
    ONE_QUERY_MISTAKES,
    Attend,
    causal,
    grouped,
    one_query,
)

Inputs = tuple[Tensor, Tensor, Tensor]
Make = Callable[..., Inputs]  # a case -> q, k and v

# Kinds of cases, and the order in which they are told: as drawn; a query of zeros; scores of a few hundred; every score
# just above LOWEST; the first key's score LOWEST, those of later keys just below HIGH.
PLAIN, ZERO, LARGE, LOW, WIDE = range(0, 500, 100)
TIMES, LOWEST, HIGH = 128, -100_000, 1_000  # TIMES: what q of a LARGE case is multiplied by
SAID = {
    PLAIN: "",
    ZERO: ", the last query is 0",
    LARGE: ", scores of a few hundred (exp overflows past 88)",
    LOW: f", every score near {LOWEST:,}",
    WIDE: f", scores of the first key near {LOWEST:,}, of later keys near {HIGH:,}",
}


class ByHand(TorchFunctionMode):
    """A mode that refuses PyTorch's own attention. grouped_only: only where it is asked to share KV heads.

    flattened: whether repeat_interleave was called without a dim on more than one dimension.
    """

    def __init__(self, grouped_only: bool) -> None:
        super().__init__()
        self.grouped_only = grouped_only
        self.flattened = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]  # also that of torch.ops
        if name == F.scaled_dot_product_attention.__name__ and (
            not self.grouped_only or (kwargs or {}).get("enable_gqa")
        ):
            option = "enable_gqa of " if self.grouped_only else ""
            raise Wrong(f"that is {option}PyTorch's own F.scaled_dot_product_attention: write this part by hand")
        got = func(*args, **(kwargs or {}))
        if name == "repeat_interleave" and args and got.dim() < args[0].dim():
            self.flattened = True
        return got


class _Attention(Comparison):
    """A Comparison that explains where values that are not finite come from, if no named mistake explains them."""

    def __call__(self, answer: Callable[..., Any], call: Call | None = None) -> None:
        try:
            super().__call__(answer, call)
        except Wrong as error:
            named = any(str(error).endswith(why) for part in self.parts.values() for why in part.mistakes)
            if named or not re.search(r"values are NaN|got -?inf", str(error)):
                raise
            raise Wrong(f"{error}; exp of a large score overflows, and a row that sees no token is 0 / 0") from None


def _comparison(
    cases: Sequence[tuple[Any, ...]],
    make: Make,
    right: Attend,
    mistakes: Mapping[str, Attend],
    describe: Callable[..., str],
    names: Iterable[str] = ("q", "k", "v"),
    grouped_only: bool = False,
    rtol: float = 1e-3,
) -> Comparison:
    """Compare an attention with `right` in float64.

    Mistakes run in the case's own float32, so that they overflow as an answer would.
    """

    def explain(got: object, want: Tensor) -> str | None:
        return explain_tensor(got, want, rtol, atol=1e-4)

    def expected(*case: Any) -> Tensor:
        return right(*(tensor.double() for tensor in make(*case))).float()

    def call(answer: Attend, *case: Any) -> Tensor:
        given, handed = make(*case), make(*case)
        with ByHand(grouped_only) as mode:
            try:
                got = answer(*handed)
            except (RuntimeError, IndexError, ValueError) as error:
                if not mode.flattened or isinstance(error, Wrong):
                    raise
                raise Wrong(f"{type(error).__name__}: {error}; without a dim, repeat_interleave flattens") from error
        require_unchanged(given, handed, names, ": make a new tensor")
        return got

    def mistaken(attend: Attend) -> Callable[..., Tensor]:
        return lambda *case: attend(*make(*case))

    known = {why: mistaken(attend) for why, attend in mistakes.items()}
    return _Attention(cases, Expected(expected, known, explain), describe, call)


# a1.1


def _make_one(num_tokens: int, head_dim: int, kind: int) -> Inputs:
    """Make query [D], keys [T, D] and values [T, D]."""
    generator = torch.Generator().manual_seed(100 * num_tokens + head_dim)
    keys, values = torch.randn(2, num_tokens, head_dim, generator=generator)
    return torch.randn(head_dim, generator=generator) * (TIMES if kind == LARGE else 1), keys, values


def _describe_one(num_tokens: int, head_dim: int, kind: int) -> str:
    return f"T={num_tokens}, D={head_dim}{SAID[kind]}"


ONE_QUERY = [
    (1, 1, PLAIN),
    (1, 4, PLAIN),
    (2, 1, PLAIN),
    (3, 4, PLAIN),
    (4, 4, PLAIN),  # T and D are equal: a transposed matrix has the same shape
    (4, 4, LARGE),
    (2, 16, LARGE),
    (300, 8, PLAIN),
    *draw(lambda rng: (rng.randint(1, 9), rng.choice((1, 2, 3, 4, 8, 16)), rng.choice((PLAIN, PLAIN, LARGE)))),
]
register(
    "a1.1",
    _comparison(ONE_QUERY, _make_one, one_query, ONE_QUERY_MISTAKES, _describe_one, ("query", "keys", "values")),
)


# a1.2 and a1.3

ROUNDED = 5e-3  # a float32 near LOWEST is exact to 0.004: exp(s - logsumexp(s)) is right, and differs by as much
# H, H_kv, T, D, kind
Heads = tuple[int, int, int, int, int]


def make_heads(num_heads: int, num_kv_heads: int, num_tokens: int, head_dim: int, kind: int) -> Inputs:
    """Make q [H, T, D], k and v [H_kv, T, D].

    Low scores are exact in float32: whole numbers over the square root of D, which is 1, 2 or 4.
    """
    generator = torch.Generator().manual_seed(1000 * num_heads + 100 * num_kv_heads + 10 * num_tokens + head_dim)
    q = torch.randn(num_heads, num_tokens, head_dim, generator=generator)
    k, v = torch.randn(2, num_kv_heads, num_tokens, head_dim, generator=generator)
    if kind == ZERO:
        q[:, -1] = 0
    if kind == LARGE:
        q = q * TIMES
    if kind in (LOW, WIDE):
        q, k = q.round().abs(), k.round().abs()
        q[..., 0], k[..., 0] = 1, LOWEST * head_dim**0.5
    if kind == WIDE:
        k[:, 1:] *= -1
        k[:, 1:, 0] = HIGH * head_dim**0.5
    return q, k, v


def _make_ungrouped(num_heads: int, *rest: Any) -> Inputs:
    return make_heads(num_heads, num_heads, *rest)


def _describe_ungrouped(num_heads: int, num_tokens: int, head_dim: int, kind: int) -> str:
    return f"H={num_heads}, T={num_tokens}, D={head_dim}{SAID[kind]}"


def _describe_grouped(num_heads: int, num_kv_heads: int, *rest: Any) -> str:
    return _describe_ungrouped(num_heads, *rest).replace(", ", f", H_kv={num_kv_heads}, ", 1)


def _draw_sizes(rng: Random) -> tuple[int, int, int]:
    """Draw T, D and the kind."""
    return rng.randint(1, 7), rng.choice((1, 4, 16)), rng.choice((PLAIN, PLAIN, ZERO, LARGE, LOW, WIDE))


CAUSAL = [
    (1, 1, 4, PLAIN),  # one token: nothing to hide
    (1, 2, 4, PLAIN),
    (2, 3, 4, PLAIN),
    (3, 3, 4, PLAIN),  # H and T are equal
    (2, 4, 4, PLAIN),  # T and D are equal
    (2, 3, 4, ZERO),
    (2, 3, 4, LARGE),
    (2, 3, 4, LOW),
    (2, 3, 4, WIDE),
    (1, 70, 4, PLAIN),
    *draw(lambda rng: (rng.randint(1, 4), *_draw_sizes(rng))),
]
register("a1.2", _comparison(CAUSAL, _make_ungrouped, causal, CAUSAL_MISTAKES, _describe_ungrouped, rtol=ROUNDED))


def _draw_grouped(rng: Random) -> Heads:
    num_kv_heads = rng.randint(1, 4)
    return num_kv_heads * rng.randint(1, 4), num_kv_heads, *_draw_sizes(rng)


GROUPED: list[Heads] = [
    (2, 1, 2, 4, PLAIN),  # one KV head for all: multi-query attention
    (3, 3, 2, 4, PLAIN),  # one for each: as in a1.2
    (4, 2, 1, 4, PLAIN),
    (4, 2, 3, 4, PLAIN),
    (6, 2, 3, 4, PLAIN),  # groups of three
    (6, 3, 3, 4, PLAIN),
    (4, 2, 4, 4, LARGE),
    (4, 2, 3, 4, ZERO),
    (4, 2, 3, 4, LOW),
    (4, 2, 3, 4, WIDE),
    *draw(_draw_grouped),
]
register(
    "a1.3",
    _comparison(GROUPED, make_heads, grouped, GROUPED_MISTAKES, _describe_grouped, grouped_only=True, rtol=ROUNDED),
)


# a1.4

# H, D, positions, the power of ten that theta is: a case with a large theta is no larger
Turn = tuple[int, int, list[int], int]
LAST = 300
FAR = 2000


def _draw_turn(rng: Random) -> Turn:
    positions = [rng.randint(0, LAST) for _ in range(rng.randint(1, 4))]
    return rng.randint(1, 4), 2 * rng.randint(1, 4), positions, rng.choice((2, 4, 6))


TURNS: list[Turn] = [
    (1, 2, [0], 4),  # position 0: nothing turns
    (1, 2, [1], 4),
    (2, 4, [1], 4),
    (2, 4, [0, 1, 2], 4),
    (3, 4, [5, 6, 7], 2),  # as many tokens as heads
    (2, 8, [7], 4),  # a decode step: one token, at a late position
    (2, 8, [3, 200, 3], 4),
    (2, 8, [FAR, 1], 4),
    (1, 4, [2, 9, 4, 1], 6),
    *draw(_draw_turn),
]


def _given(num_heads: int, head_dim: int, positions: list[int], _: int) -> tuple[Tensor, Tensor]:
    """Make x [T, H, D] and positions [T]."""
    generator = torch.Generator().manual_seed(100 * num_heads + head_dim)
    return torch.randn(len(positions), num_heads, head_dim, generator=generator), torch.tensor(positions)


def _turned(num_heads: int, head_dim: int, positions: list[int], power: int, shift: int = 0) -> Tensor:
    """Rotate as the library's models do."""
    x, at = _given(num_heads, head_dim, positions, power)
    rotation = Rotation(Rope(rope_theta=10.0**power), head_dim, length=FAR + 1 + shift)
    return rotate(x, *rotation(at + shift, x.dtype))


def _from_one(num_heads: int, head_dim: int, positions: list[int], power: int) -> Tensor:
    return _turned(num_heads, head_dim, positions, power, shift=1)


def _by_hand(
    frequency: Callable[[Tensor, int, float], Tensor] = lambda i, head_dim, theta: theta ** (-2 * i / head_dim),
    sign: int = 1,
    second: int = 1,
    interleaved: bool = False,
    position: Callable[[Tensor], Tensor] = lambda positions: positions,
    too_early: bool = False,
    dim: int = -1,
    outer: bool = True,
) -> Callable[..., Tensor]:
    """Make a rotation in plain operations, with a mistake in one of them.

    second: sign of the sine in the second half. too_early: b is computed from the new a. dim: along which the halves
    are put together. outer: each position times each frequency.
    """

    def turned(*case: Any) -> Tensor:
        (x, positions), head_dim = _given(*case), case[1]
        positions = position(positions)[:, None] if outer else positions
        angles = (positions * frequency(torch.arange(head_dim // 2), head_dim, 10.0 ** case[3]))[:, None]
        cos, sin = angles.cos(), sign * angles.sin()
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        first = a * cos - b * sin
        pairs = first, b * cos + second * (first if too_early else a) * sin
        return torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, dim)

    return turned


def _without_a_column(*case: Any) -> Tensor:
    """Rotate without the outer product; where the sizes do not fit and an answer raises, return an empty tensor."""
    try:
        return _by_hand(outer=False)(*case)
    except RuntimeError:
        return torch.empty(0)


ROPE_MISTAKES: dict[str, Callable[..., Tensor]] = {
    "the partner of number i is its neighbour, as in the paper; here it is number i + D / 2": _by_hand(
        interleaved=True
    ),
    "it is turned the other way: the first number becomes a cos - b sin, the second b cos + a sin": _by_hand(sign=-1),
    "the second number is b cos - a sin, it should be b cos + a sin": _by_hand(second=-1),
    "positions are counted from 1: the angle of position 0 is 0": _from_one,
    "rows are taken for positions: a token's angle comes from positions, which need not be 0, 1, 2": _by_hand(
        position=lambda positions: torch.arange(len(positions))
    ),
    "pair i has frequency theta ** (-i / D), it should be theta ** (-2 * i / D)": _by_hand(
        lambda i, head_dim, theta: theta ** (-i / head_dim)
    ),
    "the frequencies grow with i: the exponent -2 * i / D is negative": _by_hand(
        lambda i, head_dim, theta: theta ** (2 * i / head_dim)
    ),
    "all pairs turn by the same angle: pair i has a frequency of its own, theta ** (-2 * i / D)": _by_hand(
        lambda i, head_dim, theta: torch.ones(head_dim // 2)
    ),
    "b is computed from the new a: keep the old a": _by_hand(too_early=True),
    "the halves are concatenated along dim 0: give torch.cat dim=-1": _by_hand(dim=0),
    "multiply each position by each frequency: angles are [T, D / 2], so use positions[:, None]": (_without_a_column),
    "theta is taken as 10,000, it is an argument": _by_hand(lambda i, head_dim, theta: 10_000.0 ** (-2 * i / head_dim)),
}


def _describe_turn(num_heads: int, head_dim: int, positions: list[int], power: int) -> str:
    return f"x [{len(positions)}, {num_heads}, {head_dim}], positions={positions}, theta={10**power:,}"


def _turn_with(answer: Callable[[Tensor, Tensor, float], Tensor], *case: Any) -> Tensor:
    given, handed = _given(*case), _given(*case)
    got = answer(*handed, 10.0 ** case[3])
    require_unchanged(given, handed, ("x", "positions"), ": make a new tensor")
    return got


def _explain_turn(got: object, want: Tensor) -> str | None:
    """Explain a difference; halves along dim 0 are no reordered dimensions, even where permute would put them right."""
    message = explain_tensor(got, want, rtol=1e-3, atol=1e-3)
    if message and isinstance(got, Tensor) and got.shape == (2 * want.size(0), want.size(1), want.size(2) // 2):
        return message.partition(": values right")[0]
    return message


register("a1.4", Comparison(TURNS, Expected(_turned, ROPE_MISTAKES, _explain_turn), _describe_turn, _turn_with))
