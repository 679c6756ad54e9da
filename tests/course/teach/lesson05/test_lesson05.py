"""Lesson 05: wrong answers of its exercises are told what is wrong; its walk, picture and price say exact facts."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution


def building(changes=None):
    return solution("05.1", changes, torch=torch)


def fill_up_in_place(block_lists, max_blocks):
    table = building()(block_lists, max_blocks)
    for blocks in block_lists:
        blocks.extend([0] * (max_blocks - len(blocks)))
    return table


def cut_before_it_is_refused(block_lists, max_blocks):
    try:
        return building()(block_lists, max_blocks)
    finally:
        for blocks in block_lists:
            del blocks[max_blocks:]


GUARD, INT32 = "if len(blocks) > max_blocks:", "torch.tensor(rows, dtype=torch.int32)"

test_a_wrong_table = wrong_answers(
    "05.1",
    {
        "the engine's lists filled up": (fill_up_in_place, "you have changed what you were called with"),
        "guard of the batch": (
            building({GUARD: "if len(block_lists) > max_blocks:"}),
            "raised ValueError: a sequence has",
        ),
        "the words of an error": (
            building({"raise ValueError(": "return 'a ValueError' # "}),
            "you return 'a ValueError', expected a ValueError",
        ),
        "asserted": (building({"raise ValueError(": "assert False, ("}), "AssertionError"),
        "cut before it is refused": (cut_before_it_is_refused, "you have changed what you were called with"),
        "ids in int16": (building({INT32: f"{INT32}.to(torch.int16).int()"}), "got -28476, expected 37060"),
    },
)


class TooLong(ValueError):
    pass


def by_columns(block_lists, max_blocks):
    columns = list(zip_longest(*block_lists, fillvalue=0))
    if len(columns) > max_blocks:
        raise TooLong("no")
    columns += [(0,) * len(block_lists)] * (max_blocks - len(columns))
    return torch.tensor(columns, dtype=torch.int32).T


def by_numpy(block_lists, max_blocks):
    table = np.zeros((len(block_lists), max_blocks), dtype=np.int32)
    for i, blocks in enumerate(block_lists):
        table[i, : len(blocks)] = blocks  # numpy refuses a row that is too long with a ValueError
    return torch.from_numpy(table)


test_a_right_table = right_answers("05.1", {"by columns, an error of its own": by_columns, "numpy": by_numpy})


# 05.2


def looking_up(changes=None):
    return solution("05.2", changes, torch=torch)


def by_rows(table, positions, block_size):
    blocks = [row[position // block_size] for row, position in zip(table, positions, strict=True)]
    return torch.stack(blocks).long(), positions % block_size


def column_by_column(table, positions, block_size):
    blocks = torch.zeros(len(table), dtype=torch.int64, device=table.device)
    for column in range(table.size(1)):
        blocks = torch.where(positions // block_size == column, table[:, column].long(), blocks)
    return blocks, positions % block_size


def in_cpu_memory(table, positions, block_size):
    blocks = torch.empty(len(table), dtype=torch.int64)
    blocks.copy_(looking_up()(table, positions, block_size)[0])
    return blocks, positions % block_size


def changes_positions(table, positions, block_size):
    slots = positions % block_size
    return table.gather(1, positions.floor_divide_(block_size)[:, None]).squeeze(1).long(), slots


def by_index(table, positions, block_size):
    rows = torch.arange(len(positions), device=table.device)
    return [table[rows, positions // block_size].long(), positions.remainder(block_size)]


def by_one_hot(table, positions, block_size):
    columns = torch.arange(table.size(1), device=table.device)
    chosen = columns == (positions // block_size)[:, None]
    return (table.long() * chosen).sum(1), positions - positions // block_size * block_size


test_a_wrong_look_up = wrong_answers(
    "05.2",
    {
        "blocks alone": (
            looking_up({", positions % block_size": ""}),
            "expected (blocks, slots), got Tensor",
        ),
        "one by one": (by_rows, "you read a tensor's values on the host"),
        "column by column": (column_by_column, "ops and of 64 blocks each "),
        "powers of two alone": (
            looking_up({"positions % block_size": "positions & (block_size - 1)"}),
            "block_size=10: slots: 2 of 2 values differ",
        ),
        "ids in fp16": (looking_up({"block_table.gather": "block_table.half().gather"}), "got 20176, expected 20169"),
        "in CPU memory": (in_cpu_memory, "you read a tensor's values on the host"),
        "positions changed": (changes_positions, "positions was handed in, and you have changed it"),
    },
)
test_a_right_look_up = right_answers("05.2", {"an index, as a list": by_index, "one-hot": by_one_hot})


# 05.4

piece_with = partial(solution, "05.4")
APPENDED = "        positions = step.context_lens.long()\n"

test_wrong_block_tables = wrong_answers(
    "05.4",
    {
        "another name": (piece_with({"def append(": "def append_all("}), "write append too"),
        "slots of smaller blocks": (
            piece_with({"positions % self.block_size": "positions % (self.block_size - 1)"}),
            "prompt of 63: the tokens are right, but in decode step 1",
        ),
        "blocks from the end": (
            piece_with({"blocks[positions // self.block_size]": "blocks[-1 - positions // self.block_size]"}),
            "**Block edges**",
        ),
        "keys as values": (piece_with({"[blocks, slots] = v": "[blocks, slots] = k"}), "token 1 is 96, expected 18"),
        "whole blocks": (piece_with({"[:n]": ""}), "token 1 is 28, expected 18"),
        "not to itself": (
            piece_with({"k[i : i + 1]": "k[i:i]", "v[i : i + 1]": "v[i:i]"}),
            "the tokens are right, but in decode step 0",
        ),
        "not imported": (piece_with({"import torch.nn.functional as F\n": ""}), "name 'F' is not defined, in line 38"),
        "first column": (
            piece_with({"columns[:, None])": "columns[:, None] * 0)"}),
            "but in decode step 2",
        ),
        "the course's": (
            piece_with({APPENDED: f"        return super().append(seqs, step)\n{APPENDED}"}),
            "token 4 is 90, expected 84",
        ),
    },
)
test_right_block_tables = right_answers(
    "05.4",
    {
        "what an older batch left": piece_with({"        out.zero_()\n": ""}),
        "one result": piece_with(
            {
                "        rows = []": "        out = torch.empty_like(q)",
                "rows.append(row.squeeze(1))": "out[i] = row.squeeze(1)",
                "return torch.stack(rows)": "return out",
            }
        ),
    },
)
