"""Lesson 07: wrong merges and wrong costs are told what is wrong, and right ones pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution

pytestmark = pytest.mark.needs_triton


# 07.1


def merging(changes=None):
    return solution("07.1", changes, torch=torch)


merge = merging()
SHIFT = "torch.where(new_top == -torch.inf, 0.0, new_top)"


def merge_unshifted(a, b):
    top, (a_all, b_all) = torch.maximum(a[0], b[0]), (torch.exp(a[0]), torch.exp(b[0]))
    total = (a[1] * a_all + b[1] * b_all) / torch.exp(top)
    return top, total, (a[2] * a_all[:, None] + b[2] * b_all[:, None]) / torch.exp(top)[:, None]


def merge_in_fp32(a, b):
    return merge(*(tuple(x.float() for x in part) for part in (a, b)))


def merge_against_the_first(a, b):
    """Takes the first part's top for the larger one where that part has seen anything."""
    if a[0].isinf().all():
        return b
    shrink = torch.exp(b[0] - a[0])
    return a[0], a[1] + b[1] * shrink, a[2] + b[2] * shrink[:, None]


def merge_with_nan_to_num(a, b):
    top = torch.stack([a[0], b[0]]).amax(0)
    scales = [torch.exp(part[0] - top).nan_to_num(0.0) for part in (a, b)]
    total, acc = (torch.zeros_like(x) for x in a[1:])
    for part, scale in zip((a, b), scales, strict=True):
        total += part[1] * scale
        acc += part[2] * scale[:, None]
    return top, total, acc


def merge_from_the_logs(a, b):
    """Through the normalised outputs and the log of each sum, as kernels that split a sequence keep them."""
    top = torch.maximum(a[0], b[0])
    logs = [part[0] + part[1].log() for part in (a, b)]
    means = [part[2] / part[1].clamp(min=torch.finfo(part[1].dtype).tiny)[:, None] for part in (a, b)]
    weights = [torch.exp(log - torch.where(top == -torch.inf, 0, top)) for log in logs]
    return top, weights[0] + weights[1], sum(m * w[:, None] for m, w in zip(means, weights, strict=True))


test_a_wrong_merge = wrong_answers(
    "07.1",
    {
        "NaN of two empty states": (
            merging({SHIFT: "new_top"}),
            "top of a=[-inf], top of b=[-inf], D=1, dtype=float32: total: 1 of 1 values are NaN",
        ),
        "not shifted by the top": (merge_unshifted, "or exp taken of a score that is not shifted by the top?"),
        "merged in place": (
            merging({"return new_top": "a[2].add_(b[2]); return new_top"}),
            "acc of the first state was handed in, and you have changed it",
        ),
        "total and top alone": (lambda a, b: merge(a, b)[:2], "expected (top, total, acc)"),
        "in fp32": (merge_in_fp32, "dtype=float64: top: dtype float32, expected float64"),
        "against the first top": (merge_against_the_first, "top: 1 of 2 values differ, first at (1,)"),
    },
)
test_a_right_merge = right_answers("07.1", {"nan_to_num": merge_with_nan_to_num, "logs": merge_from_the_logs})


# 07.3


test_a_wrong_cost = wrong_answers(
    "07.3",
    {
        "one number": (lambda *arguments: 7, "expected (programs, tiles, bytes), got 7"),
        "a tile at least": (
            solution("07.3", {"return programs, most_tiles": "return programs, max(1, most_tiles)"}),
            "tiles: you return 1, expected 0",
        ),
    },
)


def cost_by_numpy(lengths, heads, dim, tile, width, parts):
    lengths = np.array(lengths)
    most = np.ceil(np.ceil(lengths / tile).max() / parts)
    return np.array([len(lengths) * heads * parts, most, lengths.sum() * 2 * heads * dim * width])


def cost_by_walking(lengths, heads, dim, tile, width, parts):
    walks = [range(0, n, tile)[part::parts] for n in lengths for _ in range(heads) for part in range(parts)]
    loads = [min(tile, n - start) for n in lengths for _ in range(heads) for start in range(0, n, tile)]
    return [len(walks), max(map(len, walks)), 2 * dim * width * sum(loads)]


test_a_right_cost = right_answers("07.3", {"numpy": cost_by_numpy, "walking": cost_by_walking})
