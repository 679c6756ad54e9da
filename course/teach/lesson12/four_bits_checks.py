"""The checker of 12.4: a matrix in 4 bits, a scale for each group, two values in each byte."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import torch
from torch import Tensor

from ..exercises.drawn import Comparison, Expected, draw
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import named_tensors, require_unchanged

Pair = tuple[Tensor, Tensor]


def packed_groups(weight: Tensor, group: int) -> Pair:
    """Compute (packed, scales) as the exercise asks for them."""
    return pack_with(weight, group, signed_largest)


def signed_largest(groups: Tensor) -> Tensor:
    """Return the scales [rows, groups, 1] with which the value of the largest absolute value in a group becomes -8."""
    return groups.gather(2, groups.abs().argmax(2, keepdim=True)) / -8


def pack_with(
    weight: Tensor,
    group: int,
    scale_of: Callable[[Tensor], Tensor],
    rounded: Callable[[Tensor], Tensor] = torch.round,
    clamped: Callable[[Tensor], Tensor] = lambda whole: whole.clamp(-8, 7),
    offset: int = 8,
    halves: tuple[int, int] = (0, 1),
) -> Pair:
    """Pack with each decision given. halves: which value of a pair goes to a byte's lower half, which to its upper."""
    groups = weight.unflatten(1, (-1, group))
    scales = scale_of(groups)
    whole = clamped(rounded(groups / torch.where(scales == 0, 1.0, scales))).flatten(1).to(torch.int32) + offset
    low, high = (whole[:, half::2] & 15 if offset == 0 else whole[:, half::2] for half in halves)
    return (low + 16 * high).to(torch.uint8), scales.expand(len(weight), weight.shape[1] // group, 1)[:, :, 0]


def _absolute(groups: Tensor, largest: int) -> Tensor:
    return groups.abs().amax(2, keepdim=True) / largest


def _one_for_a_row(groups: Tensor) -> Tensor:
    return signed_largest(groups.flatten(1)[:, None]).expand(-1, groups.shape[1], 1)


PACKING_MISTAKES: dict[str, Callable[[Tensor, int], Pair]] = {
    "the values were cut off, not rounded": partial(pack_with, scale_of=signed_largest, rounded=torch.trunc),
    "4 bits end at 7: 8 runs over into the other half of the byte": partial(
        pack_with, scale_of=signed_largest, clamped=lambda whole: whole
    ),
    "the two halves of each byte are the wrong way round": partial(pack_with, scale_of=signed_largest, halves=(1, 0)),
    "add 8 to each value: a half of a byte has no sign": partial(pack_with, scale_of=signed_largest, offset=0),
}
SCALE_MISTAKES: dict[str, Callable[[Tensor, int], Pair]] = {
    "one scale for a whole row; each group has its own": partial(pack_with, scale_of=_one_for_a_row),
    "with the largest value at 7, the number -8 is of no use": partial(
        pack_with, scale_of=partial(_absolute, largest=7)
    ),
    "a largest value that is positive becomes 8, which is cut to 7: give its scale the other sign": partial(
        pack_with, scale_of=partial(_absolute, largest=8)
    ),
    "the largest value without its sign counts, a negative one as well": partial(
        pack_with, scale_of=lambda groups: groups.amax(2, keepdim=True) / -8
    ),
}


def _expected(index: int, mistakes: dict[str, Callable[[Tensor, int], Pair]]) -> Expected:
    def part(function: Callable[[Tensor, int], Pair]) -> Callable[[Tensor, int], Tensor]:
        return lambda weight, group: function(weight, group)[index]

    return Expected(part(packed_groups), {why: part(wrong) for why, wrong in mistakes.items()}, explain_tensor)


def _pack_with_answer(answer: Callable[[Tensor, int], object], weight: Tensor, group: int) -> dict[str, Tensor]:
    before = weight.clone()
    got = named_tensors(answer(weight, group), "packed", "scales")
    require_unchanged([before], [weight], ["weight"])
    zeros, scales = (weight.unflatten(1, (-1, group)) == 0).all(2), got["scales"]
    if scales.shape == zeros.shape and scales[zeros].isfinite().all():  # any scale gives zeros back
        got["scales"] = scales.masked_fill(zeros, 0)
    return got


def _draw_matrix(rng: Random) -> tuple[Tensor, int]:
    """Draw values near whole multiples of a scale, so that every right way of rounding agrees; some are near 8."""
    num_rows, num_groups, group = rng.randint(1, 4), rng.randint(1, 3), rng.choice((2, 4, 6, 8))
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    whole = torch.randint(-7, 8, (num_rows, num_groups, group), generator=generator).float()
    near = whole + 0.7 * (torch.rand(whole.shape, generator=generator) - 0.5)
    near[(whole == 7) & (torch.rand(whole.shape, generator=generator) < 0.5)] = 7.75
    for groups in near:
        for values in groups:
            values[rng.randrange(group)] = -8
            values *= rng.choice((-1, 1)) * 2.0 ** rng.randint(-9, -2)  # a power of two: scales are exact
    if rng.random() < 0.2:
        near[rng.randrange(num_rows), rng.randrange(num_groups)] = 0
    return near.flatten(1), group


CASES = [
    *draw(_draw_matrix),
    (torch.zeros(2, 4), 2),
    (torch.tensor([[8.0, -7.75]]), 2),
    (torch.tensor([[-8.0, 3.0, 1.0, -0.5]]), 2),
]


def four_bits_comparison() -> Comparison:
    expected = {
        "packed": _expected(0, PACKING_MISTAKES | SCALE_MISTAKES),
        "scales": _expected(1, SCALE_MISTAKES),
    }
    return Comparison(CASES, expected, _describe, call=_pack_with_answer)


def _describe(weight: Tensor, group: int) -> str:
    return f"weight of shape {tuple(weight.shape)}, group={group}"
