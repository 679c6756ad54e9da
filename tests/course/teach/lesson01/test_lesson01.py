"""Lesson 01: wrong answers to its exercises are told what is wrong, and unusual right ones pass."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution

# 01.2


test_wrong_counts_of_the_gather = wrong_answers(
    "01.2",
    {
        "a list": (lambda num_layers, lengths: [1], "expected a dict with the keys 'zeros', 'zeros_like', "),
        "one op forgotten": (lambda num_layers, lengths: {"zeros": 1, "cat": 1}, "got {'zeros': 1, 'cat': 1}"),
    },
)


# 01.1


def joined(blocks, n):
    return torch.cat(blocks, dim=1)[:, :n]


def takes_blocks_off(blocks, n):
    parts = []
    while blocks:
        parts.append(blocks.pop(0))
    return joined(parts, n).unsqueeze(0)


def clears_the_rest(blocks, n):
    blocks[-1][:, (n - 1) % 64 + 1 :] = 0
    return joined(blocks, n).unsqueeze(0)


BUFFERS = {}


def in_one_buffer(blocks, n):
    out = joined(blocks, n)[None]
    return BUFFERS.setdefault(out.shape, out).copy_(out)


def times_0(blocks, n):
    slots = torch.cat(blocks, dim=1)
    return torch.einsum("ts,hsd->htd", torch.eye(slots.size(1), dtype=slots.dtype)[:n], slots)[None]


test_a_wrong_gather = wrong_answers(
    "01.1",
    {
        "blocks taken off the list": (takes_blocks_off, "you have changed what you were called with"),
        "the cache written to": (clears_the_rest, "you have changed what you were called with"),
        "through fp32": (
            lambda blocks, n: joined(blocks, n)[None].float().to(blocks[0].dtype),
            "in float64: the values are rounded: on their way they were in a smaller dtype",
        ),
        "one buffer for each shape": (in_one_buffer, "num_tokens=1, 1 × [3, 64, 2] in float32: 6 of 6 values differ"),
        "unwritten slots times 0": (times_0, "num_tokens=13, 1 × [2, 64, 2] in float32: 52 of 52 values are NaN"),
    },
)


# Right answers.


def counted_by_numpy(num_layers, lengths):
    lengths = np.array(lengths)
    shorter = np.count_nonzero(lengths < lengths.max())
    of_a_layer = {
        "cat": 2 * shorter + 2,
        "copy_": 2 * np.ceil(lengths / 64).sum(),
        "zeros_like": lengths.size,
        "zeros": lengths.size + 2 * shorter,
    }
    return Counter({op: num_layers * n for op, n in of_a_layer.items()})


test_right_counts_of_the_gather = right_answers(
    "01.2",
    {
        "NumPy's numbers in a Counter": counted_by_numpy,
        "tensors": lambda *case: {op: torch.tensor(n) for op, n in solution("01.2")(*case).items()},
    },
)


def written_into_an_empty_tensor(blocks, n):
    out = blocks[0].new_empty((1, blocks[0].shape[0], n, blocks[0].shape[2]))
    for start in range(0, n, 64):
        out[0, :, start : start + 64] = blocks[start // 64][:, : n - start]
    return out


test_a_right_gather = right_answers(
    "01.1",
    {
        "into an empty tensor": written_into_an_empty_tensor,
        "as one long row of slots": lambda b, n: torch.stack(b, 1).flatten(1, 2).narrow(1, 0, n).unsqueeze(0),
    },
)
