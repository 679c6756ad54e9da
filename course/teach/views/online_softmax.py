"""walk_online_softmax: blocks of scores come in one by one, and three running numbers become attention's result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf

import torch
from torch import Tensor

from course.display.computed_picture import ComputedPicture
from roseinfer.arguments import require_count

from .online_softmax_page import page_of

MOST_SCORES, MOST_WIDE = 24, 4
DECIMALS = 3


@dataclass(frozen=True)
class Running:
    """State of the softmax. top: the largest score so far. total: the sum of exp(score - top).

    acc: that sum with each term times its value.
    """

    top: float
    total: float
    acc: tuple[float, ...]

    def after(self, scores: list[float], values: list[list[float]]) -> Running:
        """Return the state after one more block."""
        top = max(self.top, *scores)
        shrink, weights = exp(self.top - top), [exp(score - top) for score in scores]
        acc = (
            old * shrink + sum(weight * value[d] for weight, value in zip(weights, values, strict=True))
            for d, old in enumerate(self.acc)
        )
        return Running(top, self.total * shrink + sum(weights), tuple(acc))


def walk_online_softmax(scores: Tensor, values: Tensor, block_size: int) -> ComputedPicture:
    """Show a slider over blocks: the largest score m, the sum l and the accumulator a, as numbers and bars.

    When a block has a larger score, what was summed up shrinks by exp(m_old - m_new). The last step divides a by l. In
    the page a reader can drag a score. scores [T], up to 24; values [T, D], D up to 4.
    Raises ValueError for other shapes, for values that are not finite, and for a block_size below 1.
    """
    if scores.ndim != 1 or not 1 <= len(scores) <= MOST_SCORES:
        raise ValueError(f"scores must be 1 to {MOST_SCORES} numbers [T], got shape {list(scores.shape)}")
    if values.ndim != 2 or len(values) != len(scores) or not 1 <= values.size(1) <= MOST_WIDE:
        raise ValueError(f"values must be [{len(scores)}, D], D from 1 to {MOST_WIDE}, got shape {list(values.shape)}")
    for name, tensor in (("scores", scores), ("values", values)):
        if not tensor.isfinite().all():
            raise ValueError(f"{name} must be finite, got {tensor[~tensor.isfinite()][0].item()}")
    require_count("block_size", block_size, 1)
    score_list, value_list = scores.double().tolist(), values.double().tolist()
    states = running(score_list, value_list, block_size)
    return page_of(score_list, value_list, block_size, _facts(states, score_list, value_list))


def running(scores: list[float], values: list[list[float]], block_size: int) -> list[Running]:
    """List the state before the first block, and after each."""
    states = [Running(-inf, 0.0, (0.0,) * len(values[0]))]
    for start in range(0, len(scores), block_size):
        states.append(states[-1].after(scores[start : start + block_size], values[start : start + block_size]))
    return states


def _facts(states: list[Running], scores: list[float], values: list[list[float]]) -> str:
    """Write a line per block, and how far the result is from that of one softmax."""
    lines = []
    for block, (old, new) in enumerate(pairwise(states), 1):
        was = f"m = {_number(new.top)}"
        if block > 1:
            scale = f"m from {_number(old.top)} to {_number(new.top)}, l and a times {exp(old.top - new.top):.3f}"
            was = scale if new.top > old.top else f"m stays {_number(new.top)}"
        lines.append(f"block {block}: {was}; l = {_number(new.total)}, a = {_vector(new.acc)}")
    result = torch.tensor([one / states[-1].total for one in states[-1].acc], dtype=torch.float64)
    whole = torch.tensor(scores, dtype=torch.float64).softmax(0) @ torch.tensor(values, dtype=torch.float64)
    apart = float((result - whole).abs().max())
    lines.append(f"a / l = {_vector(result.tolist())}; largest difference from softmax(scores) @ values: {apart:.6f}")
    return "\n".join(lines)


def _vector(numbers: tuple[float, ...] | list[float]) -> str:
    return f"[{', '.join(map(_number, numbers))}]"


def _number(number: float) -> str:
    return f"{round(number, DECIMALS) + 0.0:.{DECIMALS}f}"  # + 0.0: no -0.000
