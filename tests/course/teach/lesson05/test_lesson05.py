"""Lesson 05: wrong answers of its exercises are told what is wrong; its walk, picture and price say exact facts."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers


def table_of(block_lists, max_blocks):
    return torch.tensor([blocks + [0] * (max_blocks - len(blocks)) for blocks in block_lists], dtype=torch.int32)


def fill_up_in_place(block_lists, max_blocks):
    for blocks in block_lists:
        blocks.extend([0] * (max_blocks - len(blocks)))
    return torch.tensor(block_lists, dtype=torch.int32)


def widest(block_lists, max_blocks):
    return table_of(block_lists, max(map(len, block_lists)))


def padded_with_minus_one(block_lists, max_blocks):
    return torch.tensor([blocks + [-1] * (max_blocks - len(blocks)) for blocks in block_lists], dtype=torch.int32)


def refuse_without_a_word(block_lists, max_blocks):
    if any(len(blocks) > max_blocks for blocks in block_lists):
        raise ValueError
    return table_of(block_lists, max_blocks)


def refuse_and_say(block_lists, max_blocks):
    for blocks in block_lists:
        if len(blocks) > max_blocks:
            raise ValueError(f"{len(blocks)} blocks, allowed: max_blocks={max_blocks}")
    return table_of(block_lists, max_blocks)


def guard_of_the_batch(block_lists, max_blocks):
    if len(block_lists) > max_blocks:
        raise ValueError(f"{len(block_lists)} sequences")
    return refuse_and_say(block_lists, max_blocks)


def a_full_row_refused(block_lists, max_blocks):
    if any(len(blocks) >= max_blocks for blocks in block_lists):
        raise ValueError("too many blocks")
    return table_of(block_lists, max_blocks)


def by_assert(block_lists, max_blocks):
    assert all(len(blocks) <= max_blocks for blocks in block_lists)
    return table_of(block_lists, max_blocks)


def cut_before_it_is_refused(block_lists, max_blocks):
    for blocks in block_lists:
        if len(blocks) > max_blocks:
            del blocks[max_blocks:]
            raise ValueError("too many blocks")
    return table_of(block_lists, max_blocks)


def three_columns(block_lists, max_blocks):
    return refuse_and_say(block_lists, 3)


def in_int16(block_lists, max_blocks):
    return refuse_and_say(block_lists, max_blocks).to(torch.int16).int()


def filled(block_lists, max_blocks):
    table = torch.zeros(len(block_lists), max_blocks, dtype=torch.int32)
    for row, blocks in zip(table, block_lists, strict=True):
        if len(blocks) > max_blocks:
            raise ValueError(f"sequence {block_lists.index(blocks)} is too long")
        row[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    return table


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


def columns_of(table, positions, block_size):
    return (positions // block_size)[:, None]


def looked_up(table, positions, block_size):
    return table.gather(1, columns_of(table, positions, block_size)).squeeze(1).long(), positions % block_size


def look_up_one_by_one(table, positions, block_size):
    blocks = [row[position // block_size] for row, position in zip(table, positions, strict=True)]
    return torch.stack(blocks).long(), positions % block_size


test_a_wrong_table = wrong_answers(
    "05.1",
    {
        "nothing returned": (lambda lists, most: None, "got None"),
        "the engine's lists filled up": (fill_up_in_place, "these lists belong to the engine"),
        "as wide as the longest": (widest, "shape (1, 0), expected (1, 2)"),
        "int64": (lambda lists, most: table_of(lists, most).long(), "dtype int64, expected int32"),
        "minus one where no block is": (padded_with_minus_one, "got -1, expected 0"),
        "guard of the batch": (guard_of_the_batch, "refused with ValueError('5 sequences'), but every sequence fits"),
        "a full row refused": (
            a_full_row_refused,
            "refused with ValueError('too many blocks'), but every sequence fits",
        ),
        "asserted": (by_assert, "ends in AssertionError, expected a ValueError"),
        "cut before it is refused": (cut_before_it_is_refused, "you have changed [[2, 3], [1]] to [[2], [1]]"),
        "three columns": (three_columns, "max_blocks=2: shape (1, 3), expected (1, 2)"),
        "ids in int16": (in_int16, "got -19939, expected 45597"),
    },
)


RIGHT_TABLES = {
    "refused with words": refuse_and_say,
    "refused without a word": refuse_without_a_word,
    "filled row by row": filled,
    "by columns, an error of its own": by_columns,
    "numpy": by_numpy,
}


test_a_right_table = right_answers("05.1", RIGHT_TABLES)


# 05.2


def by_tolist(table, positions, block_size):
    rows = zip(table.tolist(), positions.tolist(), strict=True)
    return torch.tensor([row[p // block_size] for row, p in rows]), positions % block_size


def by_items(table, positions, block_size):
    blocks = [table[i, int(p) // block_size].item() for i, p in enumerate(positions)]
    return torch.tensor(blocks), positions % block_size


def by_numpy_look_up(table, positions, block_size):
    index, slots = np.divmod(positions.numpy(), block_size)
    return torch.from_numpy(table.numpy()[np.arange(len(table)), index]).long(), torch.from_numpy(slots)


def column_by_column(table, positions, block_size):
    blocks = torch.zeros(len(table), dtype=torch.int64, device=table.device)
    for column in range(table.size(1)):
        blocks = torch.where(positions // block_size == column, table[:, column].long(), blocks)
    return blocks, positions % block_size


def four_columns(table, positions, block_size):
    at = 4 * torch.arange(len(table), device=table.device) + positions // block_size
    return table.flatten()[at].long(), positions % block_size


def masks(table, positions, block_size):
    shift = block_size.bit_length() - 1
    return table.gather(1, (positions >> shift)[:, None]).squeeze(1).long(), positions & (block_size - 1)


def ids_in_fp16(table, positions, block_size):
    return looked_up(table.half(), positions, block_size)


def in_cpu_memory(table, positions, block_size):
    blocks = torch.empty(len(table), dtype=torch.int64)
    blocks.copy_(looked_up(table, positions, block_size)[0])
    return blocks, positions % block_size


def changes_positions(table, positions, block_size):
    slots = positions % block_size
    return table.gather(1, positions.floor_divide_(block_size)[:, None]).squeeze(1).long(), slots


def by_index(table, positions, block_size):
    rows = torch.arange(len(positions), device=table.device)
    return [table[rows, positions // block_size].long(), positions.remainder(block_size)]


def by_diagonal(table, positions, block_size):
    return table[:, positions // block_size].diagonal().long(), positions % block_size


def by_one_hot(table, positions, block_size):
    columns = torch.arange(table.size(1), device=table.device)
    chosen = columns == (positions // block_size)[:, None]
    return (table.long() * chosen).sum(1), positions - positions // block_size * block_size


def by_vmap(table, positions, block_size):
    blocks = torch.vmap(lambda row, at: row.gather(0, at[None])[0])(table, positions // block_size)
    return blocks.to(torch.int64), positions % block_size


def by_cpu_rows(table, positions, block_size):
    return table[range(len(table)), positions // block_size].long(), positions % block_size


test_a_wrong_look_up = wrong_answers(
    "05.2",
    {
        "blocks alone": (
            lambda table, p, size: table.gather(1, p[:, None] // size),
            "expected (blocks, slots), got Tensor",
        ),
        "a column": (
            lambda table, p, size: (table.gather(1, columns_of(table, p, size)).long(), p % size),
            "shape (1, 1), expected (1,): values right, only dimensions of size 1 differ",
        ),
        "int32": (
            lambda table, p, size: (table.gather(1, columns_of(table, p, size)).squeeze(1), p % size),
            "blocks: dtype int32, expected int64",
        ),
        "quotient taken off": (
            lambda table, p, size: (looked_up(table, p, size)[0], p - p // size),
            "slots: 1 of 1 values differ, first at (0,): got 14, expected 0",
        ),
        "one by one": (look_up_one_by_one, "let one gather read all"),
        "tolist": (by_tolist, "you read a tensor's values on the host"),
        "item by item": (by_items, "2 sequences take 27 ops and 64 take 647"),
        "numpy": (by_numpy_look_up, "you read a tensor's values on the host"),
        "column by column": (column_by_column, "but 4 columns take"),
        "four columns": (four_columns, "block_table=[[5, 2, 7], [4, 6, 9], [8, 3, 1]]"),
        "powers of two alone": (masks, "block_size=10: blocks: 1 of 1 values differ"),
        "ids in fp16": (ids_in_fp16, "got 20176, expected 20169"),
        "in CPU memory": (in_cpu_memory, "you read a tensor's values on the host"),
        "positions changed": (changes_positions, "positions was handed in, and you have changed it"),
        "a number for one sequence": (
            lambda table, p, size: (table.gather(1, columns_of(table, p, size)).squeeze().long(), p % size),
            "blocks: shape (), expected (1,)",
        ),
    },
)


RIGHT_LOOK_UPS = {
    "gather": looked_up,
    "an index, as a list": by_index,
    "a diagonal": by_diagonal,
    "one-hot": by_one_hot,
    "vmap": by_vmap,
    "rows as a range": by_cpu_rows,
}


test_a_right_look_up = right_answers("05.2", RIGHT_LOOK_UPS)
