"""The page of walk_online_softmax: the recurrence as Vega signals, so that a dragged score changes every number."""

from __future__ import annotations

from math import ceil, floor

from course.display.computed_picture import ComputedPicture, Spec

from .online_softmax_marks import (
    BARS,
    LEFT,
    PLOT,
    PLOT_WIDTH,
    RIGHT,
    TOP,
    bottom_of,
    marks_of,
)


def page_of(scores: list[float], values: list[list[float]], block_size: int, text: str) -> ComputedPicture:
    blocks = [range(start, min(start + block_size, len(scores))) for start in range(0, len(scores), block_size)]
    width = len(values[0])
    return ComputedPicture(
        text,
        bottom_of(width),
        [
            *_dragging(scores),
            *_recurrence(blocks, values),
            *_now(len(blocks), width),
        ],
        marks_of(len(blocks), width),
        [_tokens(blocks), _rows(width)],
        _scales(scores, blocks),
        steps=len(blocks) + 1,
        still={"step": next(iter(_growing(scores, blocks)), len(blocks) + 1)},
    )


def _growing(scores: list[float], blocks: list[range]) -> list[int]:
    """List the steps, from the second on, whose block has a new largest score: these show the most."""
    tops = [max(scores[i] for i in block) for block in blocks]
    return [n + 1 for n in range(1, len(blocks)) if tops[n] > max(tops[:n])]


def _dragging(scores: list[float]) -> list[Spec]:
    """Make a signal per score; a drag changes the score that is held, in steps of 0.1."""
    held = {
        "name": "held",
        "value": -1,
        "on": [
            {"events": "@score:mousedown", "update": "datum.i"},
            {"events": "window:mouseup", "update": "-1"},
        ],
    }
    place = "clamp(round(10 * invert('score', y())) / 10, domain('score')[0], domain('score')[1])"
    drag = "[@score:mousedown, window:mouseup] > window:mousemove!"
    at = {"name": "at", "value": 0, "on": [{"events": drag, "update": place}]}
    each = [
        {
            "name": f"s{i}",
            "value": score,
            "on": [
                {"events": {"signal": "at"}, "update": f"held == {i} ? at : s{i}"},
                {"events": "@undo:click", "update": str(score)},
            ],
        }
        for i, score in enumerate(scores)
    ]
    return [held, at, *each, {"name": "scores", "update": f"[{', '.join(f's{i}' for i in range(len(scores)))}]"}]


def _recurrence(blocks: list[range], values: list[list[float]]) -> list[Spec]:
    """Compute m, l and a after each block from those before it, as the kernel's loop does.

    To compare, one softmax over all scores gives its result, too; it knows the largest score from the beginning.
    """
    width = len(values[0])
    signals: list[Spec] = [{"name": f"{name}0", "value": 0} for name in ("l", *(f"a{d}_" for d in range(width)))]
    for n, block in enumerate(blocks, 1):
        weights = {i: f"exp(s{i} - m{n})" for i in block}
        earlier = f"m{n - 1}, " if n > 1 else ""
        updates = {
            f"m{n}": f"max({earlier}{', '.join(f's{i}' for i in block)})",
            f"f{n}": f"exp(m{n - 1} - m{n})" if n > 1 else "1",
            f"l{n}": f"l{n - 1} * f{n} + {' + '.join(weights.values())}",
        }
        for d in range(width):
            terms = (f"{weight} * ({values[i][d]})" for i, weight in weights.items())
            updates[f"a{d}_{n}"] = f"a{d}_{n - 1} * f{n} + {' + '.join(terms)}"
        signals += [{"name": name, "update": update} for name, update in updates.items()]
    largest = "extent(scores)[1]"
    every = [f"exp(s{i} - {largest})" for block in blocks for i in block]
    total = " + ".join(every)
    for d in range(width):
        terms = (f"{weight} * ({value[d]})" for weight, value in zip(every, values, strict=True))
        signals.append({"name": f"whole{d}", "update": f"({' + '.join(terms)}) / ({total})"})
    return signals


def _now(num_blocks: int, width: int) -> list[Spec]:
    """Make the numbers that the step shows: those before and after its block.

    Step 0 comes before the first block, and the last step is the result; neither has a block of its own.
    """

    def numbers(name: str, first: int) -> str:
        return f"[{', '.join(f'{name}{n}' for n in range(first, num_blocks + 1))}]"

    per_row = [numbers(name, 0) for name in ("l", *(f"a{d}_" for d in range(width)))]
    whole = ", ".join(f"whole{d}" for d in range(width))
    updates = {
        "ready": f"step > {num_blocks}",
        "m": f"{numbers('m', 1)}[clamp(step, 1, {num_blocks}) - 1]",
        "m_old": f"step > 1 ? {numbers('m', 1)}[step - 2] : m",
        "factor": f"ready || !step ? 1 : {numbers('f', 1)}[step - 1]",
        "before": f"[{', '.join(f'{row}[max(step - 1, 0)]' for row in per_row)}]",
        "after": f"ready ? before : [{', '.join(f'{row}[step]' for row in per_row)}]",
        "whole": f"[1, {whole}]",
        "reach": f"extent([0, 1, {', '.join(row[1:-1] for row in per_row)}])",
    }
    return [{"name": name, "update": update} for name, update in updates.items()]


def _tokens(blocks: list[range]) -> Spec:
    tokens = [{"i": i, "block": n} for n, block in enumerate(blocks) for i in block]
    formulas = {
        "s": "scores[datum.i]",
        "read": "datum.block < step",
        "earlier": "datum.block < step - 1",
        "weight": "datum.read ? exp(datum.s - m) : 0",
        "was": "datum.earlier ? exp(datum.s - m_old) : 0",
    }
    return _table("tokens", tokens, formulas)


def _rows(width: int) -> Spec:
    """Make a row for l, and one for each element of a."""
    rows = [{"row": 0, "name": "l"}, *({"row": 1 + d, "name": f"a[{d}]"} for d in range(width))]
    return _table("rows", rows, {"kept": "before[datum.row] * factor", "now": "after[datum.row]"})


def _table(name: str, values: list[Spec], formulas: dict[str, str]) -> Spec:
    return {
        "name": name,
        "values": values,
        "transform": [{"type": "formula", "as": field, "expr": expr} for field, expr in formulas.items()],
    }


def _scales(scores: list[float], blocks: list[range]) -> list[Spec]:
    tokens = [i for block in blocks for i in block]
    place = {"type": "band", "domain": tokens, "paddingInner": 0.25}
    low, high = floor(min(0, *scores)) - 1, ceil(max(0, *scores)) + 2
    linear = {"type": "linear", "zero": False}
    return [
        {"name": "token", "range": [LEFT, LEFT + PLOT_WIDTH], **place},
        {"name": "place", "range": [RIGHT, RIGHT + PLOT_WIDTH], **place},
        {"name": "score", "domain": [low, high], "range": [TOP + PLOT, TOP], **linear},
        {"name": "weight", "domain": [0, 1], "range": [TOP + PLOT, TOP], **linear},
        {"name": "state", "domain": {"signal": "reach"}, "range": list(BARS), **linear},
    ]
