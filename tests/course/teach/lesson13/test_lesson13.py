"""Lesson 13, buckets and rows that fill up: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from functools import partial

import numpy as np
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution

cost = solution("13.1")

test_wrong_costs = wrong_answers(
    "13.1",
    {
        "buckets sorted in place": (lambda s, b: b.sort() or cost(s, b), "which is the caller's: make a copy"),
        "a table of 16 sizes": (lambda s, b: cost(s, [x for x in b if x <= 16]), "expected"),
        "a bucket after another": (
            solution(
                "13.1", {"len({bucket for _, bucket in used})": "sum(a[1] != b[1] for a, b in zip(used, used[1:]))"}
            ),
            "captures: you return",
        ),
    },
)


def by_bisection(sizes, buckets):
    buckets = sorted(buckets)
    used = Counter(bisect_left(buckets, size) for size in sizes)
    rows = sum(buckets[i] * n for i, n in used.items() if i < len(buckets))
    return [rows - sum(size for size in sizes if size <= buckets[-1]), len([i for i in used if i < len(buckets)])]


def in_numpy(sizes, buckets):
    grid = np.array(sorted(buckets))[None, :] - np.array(sizes)[:, None]
    fits = (grid >= 0).any(axis=1)
    first = (grid >= 0).argmax(axis=1)
    return np.array([grid[np.arange(len(sizes)), first][fits].sum(), len(np.unique(first[fits]))])


test_right_costs = right_answers("13.1", {"by bisection, a list": by_bisection, "numpy": in_numpy})


# 13.2


filled_with = partial(solution, "13.2")


def in_new_arrays(inputs, *sizes):
    for name, array in inputs.items():
        inputs[name] = array.copy()
    filled_with()(inputs, *sizes)


SLOT = "dummy_block * block_size"
test_wrong_fillings = wrong_answers(
    "13.2",
    {
        "a row for each sequence": (filled_with({"num_tokens:bucket": "num_seqs:bucket"}), "the batch's own part"),
        "new arrays": (in_new_arrays, "another array now, but the graph reads"),
        "slots in 16 bits": (
            filled_with({SLOT: f"({SLOT} + 2**15) % 2**16 - 2**15"}),
            "blocks that slot_mapping writes to: 5 of 5 values differ",
        ),
    },
)


def row_by_row(inputs, num_seqs, num_tokens, bucket, dummy, size):
    for seq, row in enumerate(range(num_tokens, bucket), start=num_seqs):
        inputs["slot_mapping"][row] = dummy * size + row % size
        inputs["query_start"][seq + 1] = inputs["query_start"][seq] + 1
        inputs["context_lens"][seq] = row % size + 1
        inputs["block_tables"][seq] = dummy


def to_the_end(inputs, num_seqs, num_tokens, bucket, dummy, size):
    """Also what lies past the bucket."""
    inputs["slot_mapping"][num_tokens:] = dummy * size + size - 1
    inputs["query_start"][num_seqs:] = num_tokens + np.arange(len(inputs["query_start"]) - num_seqs)
    inputs["context_lens"][num_seqs:] = 1
    inputs["block_tables"][num_seqs:] = dummy


test_right_fillings = right_answers(
    "13.2", {"row by row, each its own slot": row_by_row, "to the end of the arrays": to_the_end}
)
