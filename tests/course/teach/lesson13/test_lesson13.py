"""Lesson 13, buckets and rows that fill up: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers


def bucket_of(size, buckets):
    return min((bucket for bucket in buckets if bucket >= size), default=None)


def cost(sizes, buckets):
    pairs = [(size, bucket_of(size, buckets)) for size in sizes]
    used = [(size, bucket) for size, bucket in pairs if bucket is not None]
    return sum(bucket - size for size, bucket in used), len({bucket for _, bucket in used})


def follow(sizes, buckets):
    """Each size with the bucket of the step before."""
    return zip(sizes, [None, *(bucket_of(size, buckets) for size in sizes)], strict=False)


test_wrong_costs = wrong_answers(
    "13.1",
    {
        "one number": (lambda s, b: cost(s, b)[0], "expected (padding_rows, captures)"),
        "the other way round": (lambda s, b: cost(s, b)[::-1], "expected"),
        "printed": (lambda s, b: print(cost(s, b)), "got None"),
        "buckets sorted in place": (lambda s, b: b.sort() or cost(s, b), "which is the caller's: make a copy"),
        "a table of 16 sizes": (lambda s, b: cost(s, [x for x in b if x <= 16]), "expected"),
        "a bucket after another": (
            lambda s, b: (cost(s, b)[0], sum(bucket_of(n, b) not in (None, old) for n, old in follow(s, b))),
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


test_right_costs = right_answers(
    "13.1",
    {
        "by bisection, a list": by_bisection,
        "numpy": in_numpy,
        "floats": lambda s, b: tuple(map(float, cost(s, sorted(b)))),
        "tensors": lambda s, b: tuple(map(torch.tensor, cost(s, b))),
    },
)


# 13.2


def fill(inputs, num_seqs, num_tokens, bucket, dummy, size, **instead):
    """Right, but for what `instead` writes: by the name of the array, a value or a list of them."""
    missing = bucket - num_tokens
    values = {
        "slot_mapping": dummy * size,
        "query_start": list(range(num_tokens + 1, bucket + 1)),
        "context_lens": 1,
        "block_tables": dummy,
    } | instead
    seqs = slice(num_seqs, num_seqs + missing)
    parts = {
        "slot_mapping": inputs["slot_mapping"][num_tokens:bucket],
        "query_start": inputs["query_start"][num_seqs + 1 : num_seqs + missing + 1],
        "context_lens": inputs["context_lens"][seqs],
        "block_tables": inputs["block_tables"][seqs, 0],
    }
    for name, value in values.items():
        if value is not None and missing:
            parts[name][:] = value


def filled_with(**instead):
    """instead: a function of (num_seqs, num_tokens, bucket, dummy, size), or None for what is left as it was."""
    return lambda inputs, *sizes: fill(inputs, *sizes, **{k: v and v(*sizes) for k, v in instead.items()})


def as_for_a_decode_step(inputs, num_seqs, num_tokens, bucket, dummy, size):
    """The stage's own, which knows one row per sequence."""
    rows = slice(num_seqs, bucket)
    inputs["slot_mapping"][rows] = dummy * size
    inputs["query_start"][num_seqs + 1 : bucket + 1] = np.arange(num_seqs + 1, bucket + 1)[
        : len(inputs["query_start"][num_seqs + 1 : bucket + 1])
    ]
    inputs["context_lens"][rows] = 1
    inputs["block_tables"][rows, 0] = dummy


def in_new_arrays(inputs, *sizes):
    for name, array in inputs.items():
        inputs[name] = array.copy()
    fill(inputs, *sizes)


def over_the_last(inputs, num_seqs, num_tokens, bucket, dummy, size):
    fill(inputs, num_seqs, num_tokens, bucket, dummy, size)
    inputs["context_lens"][num_seqs - 1 : num_seqs + bucket - num_tokens] = 1
    inputs["slot_mapping"][num_tokens - 1 : bucket] = dummy * size


test_wrong_fillings = wrong_answers(
    "13.2",
    {
        "slot 0": (
            filled_with(slot_mapping=lambda *_: 0),
            "writes to slot 0, but block 0 is given to sequences like any other",
        ),
        "slots left": (filled_with(slot_mapping=None), "may belong to a running sequence by now"),
        "the block as a slot": (
            filled_with(slot_mapping=lambda n, t, b, dummy, size: dummy),
            "that is the number of the dummy block",
        ),
        "slot -1": (filled_with(slot_mapping=lambda *_: -1), "a negative index writes at the end of the pool"),
        "query_start left": (filled_with(query_start=None), "it does not continue after the batch"),
        "sequences without rows": (filled_with(query_start=lambda n, t, *_: t), "it has no row"),
        "sequences counted": (
            filled_with(query_start=lambda n, t, bucket, *_: list(range(n + 1, n + 1 + bucket - t))),
            "it counts rows",
        ),
        "no context": (filled_with(context_lens=lambda *_: 0), "its own token is written, then attended to"),
        "context left": (filled_with(context_lens=None), "99 tokens of an older step"),
        "tables left": (filled_with(block_tables=None), "where its token is"),
        "block 0": (filled_with(block_tables=lambda *_: 0), "reads block 0"),
        "as for a decode step": (as_for_a_decode_step, "slot_mapping: the batch's own part"),
        "new arrays": (in_new_arrays, "another array now, but the graph reads"),
        "over the batch's last": (over_the_last, "the batch's own part"),
        "slots in 16 bits": (
            filled_with(slot_mapping=lambda n, t, b, dummy, size: (dummy * size + 2**15) % 2**16 - 2**15),
            "only the dummy block",
        ),
        "on into the next block": (
            filled_with(slot_mapping=lambda n, t, bucket, dummy, size: [dummy * size + i for i in range(bucket - t)]),
            "only the dummy block",
        ),
        "contexts that grow": (
            filled_with(context_lens=lambda n, t, bucket, *_: list(range(2, bucket - t + 2))),
            "expected 1, its own",
        ),
        "nothing written": (lambda inputs, *sizes: dict(inputs), "nothing in inputs has changed"),
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
    "13.2",
    {"row by row, each its own slot": row_by_row, "to the end of the arrays": to_the_end, "through views": fill},
)
