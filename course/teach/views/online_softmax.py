"""walk_online_softmax: blocks of scores come in one by one, and three running numbers become attention's result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf

import torch
from torch import Tensor

from course.display.board import EDGE, Board, Cell, Frame, Panel, table
from roseinfer.arguments import require_count
from roseinfer.display.figure import PALETTE

MOST_SCORES, MOST_WIDE = 24, 4
DECIMALS = 3
EARLIER = Cell(0, 0, "earlier blocks", PALETTE[2])
THIS_BLOCK = Cell(0, 0, "this block", PALETTE[5])
SUMS = "l, the sum of weights, and a, the sum of weight × value"
LATER = Cell(0, 0, "not read yet", EDGE, strength=0.1)


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


def walk_online_softmax(scores: Tensor, values: Tensor, block_size: int) -> Board:
    """Show a frame per block: each score and its weight, the largest score m, the sum l and the accumulator a.

    When a block has a larger score, what was summed up shrinks by exp(m_old - m_new). The last step divides a by l.
    scores [T], up to 24; values [T, D], D up to 4.
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
    frames = [_frame(step, states, score_list, block_size) for step in range(len(states))]
    grows = (step for step in range(2, len(states)) if states[step].top > states[step - 1].top)
    return Board(
        [*frames, _result(states, score_list, value_list, block_size)],
        _facts(states, score_list, value_list),
        shown=next(grows, len(states)),
        legend=(THIS_BLOCK, EARLIER, LATER),
    )


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
    result, whole = _results(states, scores, values)
    apart = float((result - whole).abs().max())
    lines.append(f"a / l = {_vector(result.tolist())}; largest difference from softmax(scores) @ values: {apart:.6f}")
    return "\n".join(lines)


def _results(states: list[Running], scores: list[float], values: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Compute a / l, and what one softmax over all scores gives."""
    result = torch.tensor([one / states[-1].total for one in states[-1].acc], dtype=torch.float64)
    return result, torch.tensor(scores).double().softmax(0) @ torch.tensor(values).double()


def _frame(step: int, states: list[Running], scores: list[float], block_size: int) -> Frame:
    now = states[step]
    if not step:
        heading, says = "before the first block", "Nothing is read yet: m is -inf, and l and a are 0."
        sums = table("", ["", "now"], [[name, _number(number)] for name, number in _rows(now).items()])
    else:
        old = states[step - 1]
        factor = exp(old.top - now.top) if step > 1 else 1.0
        heading, says = f"block {step} of {len(states) - 1}: m = {now.top:.2f}", _says(step, old, now)
        rows = [
            [name, _number(was), f"× {_number(factor)}", f"+ {_number(new - was * factor)}", f"= {_number(new)}"]
            for (name, was), new in zip(_rows(old).items(), _rows(now).values(), strict=True)
        ]
        sums = table(SUMS, ["", "before", "factor", "this block", "now"], rows)
    return Frame([_tokens(step, now, scores, block_size), sums], heading, says)


def _says(step: int, old: Running, now: Running) -> str:
    if step == 1:
        return "Nothing was summed up before it: m is its own largest score."
    if now.top == old.top:
        return f"m stays {now.top:.2f}: the factor is exp(0) = 1, and nothing shrinks."
    change = f"exp({old.top:.2f} - {now.top:.2f}) = {exp(old.top - now.top):.3f}"
    return f"m grows from {old.top:.2f} to {now.top:.2f}: all that was summed up shrinks by {change}."


def _result(states: list[Running], scores: list[float], values: list[list[float]], block_size: int) -> Frame:
    last, (result, whole) = states[-1], _results(states, scores, values)
    rows = [
        [f"a[{d}]", _number(acc), f"/ {_number(last.total)}", f"= {_number(one)}", _number(other)]
        for d, (acc, one, other) in enumerate(zip(last.acc, result.tolist(), whole.tolist(), strict=True))
    ]
    sums = table("The weighted mean", ["", "a", "l", "a / l", "softmax(s) @ V"], rows)
    says = "The same as one softmax over all scores, which has to know the largest one from the beginning."
    return Frame([_tokens(len(states), last, scores, block_size), sums], "the result: a / l", says)


def _tokens(step: int, now: Running, scores: list[float], block_size: int) -> Panel:
    """Show each token's score, and how much of its box its weight fills."""
    cells = []
    for token, score in enumerate(scores):
        block = token // block_size + 1
        look = LATER if block > step else THIS_BLOCK if block == step else EARLIER
        weight = exp(score - now.top) if block <= step else 0.0
        cells.append(replace(look, column=token, text=f"{score:.1f}"))
        cells.append(replace(look, row=1, column=token, text=f"{weight:.2f}" if weight else "", filled=weight))
    rows = ("score s", "exp(s - m)")
    return Panel(cells, "Tokens, block by block", rows, range(len(scores)), unit="token", cell=(48, 26), size=11)


def _rows(state: Running) -> dict[str, float]:
    return {"l": state.total} | {f"a[{d}]": one for d, one in enumerate(state.acc)}


def _vector(numbers: tuple[float, ...] | list[float]) -> str:
    return f"[{', '.join(map(_number, numbers))}]"


def _number(number: float) -> str:
    return f"{round(number, DECIMALS) + 0.0:.{DECIMALS}f}"  # + 0.0: no -0.000
