"""Lesson 04: wrong answers are told what is wrong; the phases of a step; the picture of the pool."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers


def padded(tables, longest, size, fill=0):
    width = -(-longest // size)
    return torch.tensor([(row + [fill] * width)[:width] for row in tables])


def right_indices(tables, longest, size, fill=0):
    tokens = torch.arange(longest)
    return padded(tables, longest, size, fill)[:, tokens // size], tokens % size


def slots_for_each_sequence(tables, longest, size):
    blocks, slots = right_indices(tables, longest, size)
    return blocks, slots.expand_as(blocks)


def fractions(tables, longest, size):
    return right_indices(tables, longest, size)[0], torch.arange(longest) / size


def narrow(tables, longest, size):
    blocks, slots = right_indices(tables, longest, size)
    return blocks.int(), slots


def whole_blocks(tables, longest, size):
    return right_indices(tables, -(-longest // size) * size, size)


def rows_never_cut(tables, longest, size):
    width = -(-longest // size)
    table, tokens = torch.tensor([row + [0] * (width - len(row)) for row in tables]), torch.arange(longest)
    return table[:, tokens // size], tokens % size


def lists_filled_up(tables, longest, size):
    for row in tables:
        row.extend([0] * (-(-longest // size) - len(row)))
    return right_indices(tables, longest, size)


def by_masks(tables, longest, size):
    tokens, shift = torch.arange(longest), size.bit_length() - 1
    return right_indices(tables, longest, size)[0][:, (tokens >> shift) << shift], tokens & (size - 1)


def three_blocks_at_most(tables, longest, size):
    table, tokens = torch.tensor([(row + [0] * 3)[:3] for row in tables]), torch.arange(longest)
    return table[:, tokens // size], tokens % size


def ids_in_a_byte(tables, longest, size):
    blocks, slots = right_indices(tables, longest, size)
    return blocks.to(torch.uint8).long(), slots


test_wrong_indices = wrong_answers(
    "04.1",
    {
        "one tensor": (
            lambda tables, longest, size: right_indices(tables, longest, size)[0],
            "expected (blocks, slots), got Tensor",
        ),
        "lists": (lambda tables, longest, size: (tables, [0]), "expected tensors (blocks, slots), got list and list"),
        "the wrong way round": (
            lambda tables, longest, size: right_indices(tables, longest, size)[::-1],
            "the wrong way round",
        ),
        "slots by sequence": (
            slots_for_each_sequence,
            "only dimensions of size 1 differ: the slot of token t is the same in every sequence",
        ),
        "fractions": (fractions, "slots is floating point"),
        "int32": (narrow, "blocks: dtype int32, expected int64"),
        "minus one where no block is": (
            lambda tables, longest, size: right_indices(tables, longest, size, fill=-1),
            "read from the end of the pool",
        ),
        "one where no block is": (
            lambda tables, longest, size: right_indices(tables, longest, size, fill=1),
            "blocks: 3 of 6 values differ, first at (1, 0): got 1, expected 0",
        ),
        "whole blocks": (whole_blocks, "blocks: shape (1, 4), expected (1, 3)"),
        "rows never cut": (
            rows_never_cut,
            "block tables [[5, 1], [3]], longest 4, block size 4: checking your answer raised ValueError",
        ),
        "the engine's lists filled up": (
            lists_filled_up,
            "you have changed [[5], []] to [[5], [0]]: these lists belong to the engine",
        ),
        "powers of two alone": (by_masks, "block size 3: blocks: 1 of 8 values differ, first at (0, 3)"),
        "three blocks at most": (
            three_blocks_at_most,
            "longest 5, block size 1: checking your answer raised IndexError",
        ),
        "ids in a byte": (ids_in_a_byte, "got 165, expected 3493"),
    },
)


def by_token(tables, longest, size):
    blocks = [[row[t // size] if t // size < len(row) else 0 for t in range(longest)] for row in tables]
    return torch.tensor(blocks), torch.tensor([t % size for t in range(longest)])


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

RIGHT_INDICES = {"by token": by_token, "by repeating, as a list": by_repeating, "numpy, a named tuple": by_numpy}


test_right_indices = right_answers("04.1", RIGHT_INDICES)


# 04.2


def one_by_one(tables, num_cached, size):
    rows = zip(tables, num_cached, strict=True)
    return torch.tensor([row[n // size] * size + n % size for row, n in rows])


def takes_the_block_out(tables, num_cached, size):
    return torch.tensor([row.pop(n // size) * size + n % size for row, n in zip(tables, num_cached, strict=True)])


def shifted(tables, num_cached, size):
    shift = size.bit_length() - 1
    rows = zip(tables, num_cached, strict=True)
    return torch.tensor([(row[n >> shift] << shift) + (n & (size - 1)) for row, n in rows])


def in_fp32(tables, num_cached, size):
    blocks = torch.tensor([float(row[n // size]) for row, n in zip(tables, num_cached, strict=True)])
    return (blocks * size + torch.tensor(num_cached) % size).long()


def first_table(tables, num_cached, size):
    return one_by_one([max(tables, key=len)] * len(tables), num_cached, size)


test_wrong_slots = wrong_answers(
    "04.2",
    {
        "the newest cached token": (  # the teacher's kit quotes it
            lambda tables, num_cached, size: one_by_one(tables, [n - 1 for n in num_cached], size),
            "block tables [[5]], [0] cached, block size 4: 1 of 1 values differ, first at (0,): got 23, expected 20: ",
        ),
        "a list": (lambda tables, num_cached, size: [19, 20, 29], "expected a tensor, got list"),
        "a column": (lambda tables, n, size: one_by_one(tables, n, size)[:, None], "shape (1, 1), expected (1,)"),
        "fp32": (lambda tables, n, size: one_by_one(tables, n, size).float(), "dtype float32, expected int64"),
        "int32": (lambda tables, n, size: one_by_one(tables, n, size).int(), "dtype int32, expected int64"),
        "a block taken out of the list": (
            takes_the_block_out,
            "you have changed [[5]] to [[]]: these lists belong to the engine",
        ),
        "powers of two alone": (shifted, "block tables [[2, 7]], [5] cached, block size 10: 1 of 1 values differ"),
        "in fp32": (in_fp32, "got 2560000000, expected 2560000005"),
        "one table for all": (first_table, "2 of 3 values differ, first at (1,): got 4, expected 20"),
        "a number for one sequence": (
            lambda tables, n, size: one_by_one(tables, n, size).squeeze(),
            "shape (), expected (1,)",
        ),
        "fewer than 40 sequences": (
            lambda tables, n, size: one_by_one(tables[:5], n[:5], size),
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


def slots_by_numpy(tables, num_cached, size):
    rows = zip(tables, np.asarray(num_cached), strict=True)
    return torch.from_numpy(np.array([row[n // size] * size + n % size for row, n in rows]))


RIGHT_SLOTS = {
    "one by one": one_by_one,
    "gather": slots_by_gather,
    "all places": slots_of_all_tokens,
    "numpy": slots_by_numpy,
}


test_right_slots = right_answers("04.2", RIGHT_SLOTS)
