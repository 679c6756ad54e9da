"""Lesson 04: wrong answers are told what is wrong; the phases of a step; the picture of the pool."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution


def indices(changes=None):
    return solution("04.1", changes, torch=torch)


def lists_filled_up(tables, longest, size):
    for row in tables:
        row.extend([0] * (-(-longest // size) - len(row)))
    return indices()(tables, longest, size)


BLOCKS, SLOTS = "table[:, tokens // block_size]", "tokens % block_size"

test_wrong_indices = wrong_answers(
    "04.1",
    {
        "one tensor": (indices({f", {SLOTS}": ""}), "expected (blocks, slots), got Tensor"),
        "lists": (lambda tables, longest, size: (tables, [0]), "expected tensors (blocks, slots), got list and list"),
        "whole blocks": (
            indices({"torch.arange(longest)": "torch.arange(width * block_size)"}),
            "blocks: shape (1, 4), expected (1, 1)",
        ),
        "the engine's lists filled up": (lists_filled_up, "you have changed what you were called with"),
        "powers of two alone": (
            indices({SLOTS: "tokens & (block_size - 1)"}),
            "block_size=3: slots: 6 of 8 values differ",
        ),
        "ids in a byte": (indices({BLOCKS: f"{BLOCKS}.to(torch.uint8).long()"}), "got 165, expected 3493"),
    },
)


def by_repeating(tables, longest, size):
    table = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in tables], batch_first=True)
    width = table.size(1)
    return [table.repeat_interleave(size, 1)[:, :longest], torch.arange(size).repeat(width)[:longest]]


def by_numpy(tables, longest, size):
    index, slots = np.divmod(np.arange(longest), size)
    table = np.zeros((len(tables), max(map(len, tables)) + 1), dtype=np.int64)
    for i, row in enumerate(tables):
        table[i, : len(row)] = row
    return Indices(torch.from_numpy(table[:, index]), torch.from_numpy(slots))


Indices = namedtuple("Indices", "blocks slots")

test_right_indices = right_answers(
    "04.1",
    {"by repeating, as a list": by_repeating, "numpy, a named tuple": by_numpy},
)


# 04.2


def mapping(changes=None):
    return solution("04.2", changes, torch=torch)


ROW, END = "row[index] * block_size + slot", "in rows])"

test_wrong_slots = wrong_answers(
    "04.2",
    {
        "the newest cached token": (  # the teacher's kit quotes it
            mapping({"divmod(n,": "divmod(n - 1,"}),
            "block_tables=[[5]], num_cached=[0], block_size=4: 1 of 1 values differ, first at (0,): got 23, expected",
        ),
        "a list": (lambda tables, num_cached, size: [19, 20, 29], "expected a tensor, got list"),
        "a block taken out of the list": (mapping({"row[index]": "row.pop(index)"}), "you have changed what you were"),
        "powers of two alone": (
            mapping({"divmod(n, block_size)": "(n >> (block_size.bit_length() - 1), n & (block_size - 1))"}),
            "block_tables=[[2, 7]], num_cached=[5], block_size=10: 1 of 1 values differ",
        ),
        "in fp32": (mapping({ROW: f"int(torch.tensor(float({ROW})))"}), "got 2560000000, expected 2560"),
        "five sequences at most": (
            mapping({"zip(block_tables, places": "zip(block_tables[:5], places[:5]"}),
            "shape (5,), expected (6,)",
        ),
    },
)


def slots_by_gather(tables, num_cached, size):
    n = torch.tensor(num_cached)
    table = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in tables], batch_first=True)
    return table.gather(1, (n // size)[:, None])[:, 0] * size + n % size


def slots_of_all_tokens(tables, num_cached, size):
    """Lists every place of each sequence, and takes the one asked for."""
    places = [[block * size + slot for block in row for slot in range(size)] for row in tables]
    return torch.stack([torch.tensor(row[n]) for row, n in zip(places, num_cached, strict=True)])


test_right_slots = right_answers("04.2", {"gather": slots_by_gather, "all places": slots_of_all_tokens})
