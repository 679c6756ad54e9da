"""Checkers of lesson 05: a padded block table, looking a token up in it, and attention that reads through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.kernels.cases import paged_case
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied, count_ops

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.attention_checks import LARGE_SCORES, Batch, attention_comparison, draw_lengths
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.piece_check import register_piece
from ..exercises.solutions import solution
from ..exercises.stage_checks import require_stage, require_tokens
from ..exercises.tensor_checks import named_tensors, on_tensors
from ..exercises.wrong import Wrong, value_or_refusal

# 05.1


def _draw_batch(rng: Random) -> tuple[list[list[int]], int]:
    """Draw a batch. In one of four, a sequence at any place has too many blocks for the table."""
    max_blocks, num_seqs = rng.randint(1, 6), rng.randint(1, 6)
    widths = [rng.randint(0, max_blocks) for _ in range(num_seqs)]
    if rng.random() < 0.25:
        widths[rng.randrange(num_seqs)] = max_blocks + rng.randint(1, 2)
    ids = iter(rng.sample(range(rng.choice((60, 70_000))), sum(widths)))
    return [[next(ids) for _ in range(width)] for width in widths], max_blocks


def _table_or_refusal(answer: Callable[..., Any], block_lists: list[list[int]], max_blocks: int) -> Any:
    is_too_long = max(map(len, block_lists)) > max_blocks
    return value_or_refusal(partial(answer, block_lists, max_blocks), is_due=is_too_long)


TABLE_MISTAKES = {
    "what does not fit is cut off, so that sequence loses its newest tokens": {
        "if len(blocks) > max_blocks:": "if False:",
        "torch.tensor(rows": "torch.tensor([row[:max_blocks] for row in rows]",
    },
    "the ids come first, and the zeros after them": {
        "blocks + [0] * (max_blocks - len(blocks))": "[0] * (max_blocks - len(blocks)) + blocks"
    },
    "after a sequence's ids come zeros; -1 would name the last block of the pool": {"[0] *": "[-1] *"},
}

TABLES = as_solved("05.1", TABLE_MISTAKES, explain_tensor, _table_or_refusal, torch=torch)
register("05.1", Comparison(draw(_draw_batch, 80), TABLES, inputs("block_lists", "max_blocks"), _table_or_refusal))


# 05.2


def _draw_places(rng: Random) -> tuple[list[list[int]], list[int], int]:
    """Draw a block table, a position in each of its rows, and the block size."""
    size, width, num_seqs = rng.choice((1, 4, 7, 8, 10)), rng.randint(1, 6), rng.randint(1, 6)
    ids = iter(rng.sample(range(rng.choice((100, 70_000))), width * num_seqs))
    table = [[next(ids) for _ in range(width)] for _ in range(num_seqs)]
    return table, [rng.randrange(width * size) for _ in range(num_seqs)], size


PLACES = [
    ([[2**30 + 1, 5]], [3], 8),  # an id, and below a position, past what fp32 can count to
    ([[3, 8]], [2**25 - 1], 2**25),
    *draw(_draw_places),
]


def _tensors(table: list[list[int]], positions: list[int], size: int) -> tuple[Tensor, Tensor, int]:
    return torch.tensor(table, dtype=torch.int32), torch.tensor(positions), size


def _look_up_with(answer: Callable[..., object], *place: Any) -> dict[str, Tensor]:
    return named_tensors(on_tensors(_tensors, "block_table", "positions")(answer, *place), "blocks", "slots")


READ = "block_table.gather(1, columns[:, None]).squeeze(1)"
LOOK_UP_MISTAKES = {
    "blocks": {
        "these are logical blocks, columns of the table; the table says where each of them is": {READ: "columns"},
        "block_table[:, columns] reads every column in every row; row i needs its own column only": {
            READ: "block_table[:, columns]"
        },
        "every row is read in the same column": {READ: "block_table[:, columns[0]]"},
    },
    "slots": {
        "that is the position; the slot is what // leaves over": {"positions % block_size": "positions"},
        "that is the column of the table; the slot is what // leaves over": {"positions % block_size": "columns"},
    },
}
LOOK_UP = Comparison(
    PLACES,
    as_solved_by_name("05.2", LOOK_UP_MISTAKES, explain_tensor, _look_up_with, torch=torch),
    inputs("block_table", "positions", "block_size"),
    _look_up_with,
)


@exercise("05.2", LOOK_UP)
def look_up(answer: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> None:
    LOOK_UP(answer)
    few, many, wide = (_num_ops(answer, *shape) for shape in ((2, 4), (64, 4), (2, 64)))
    if max(many, wide) > few:
        more = f"64 take {many}" if many > few else f"of 64 blocks each {wide}"
        raise Wrong(f"the places are right, but 2 sequences take {few} ops and {more}: let one gather read all")


def _num_ops(answer: Callable[..., Any], num_seqs: int, width: int) -> int:
    """Count ops on torch's meta device. It has no values, so that each read on the host fails there."""
    table = torch.zeros(num_seqs, width, dtype=torch.int32, device="meta")
    positions = torch.zeros(num_seqs, dtype=torch.int64, device="meta")
    try:
        return count_ops(partial(answer, table, positions, 8)).total()
    except Exception as error:
        raise Wrong(
            "the places are right, but you read a tensor's values on the host (.tolist(), .item(), int(), numpy, a "
            f"loop over its elements): on a GPU every such read waits for the device ({type(error).__name__}: {error})"
        ) from error


# 05.3

QUERY_AND_PAST = "keys.transpose(0, 1), values.transpose(0, 1), enable_gqa=True"
ATTENTION_MISTAKES = {
    "that is attention over the cached tokens alone: a new token also attends to itself, by its k and v": {
        "k[i : i + 1]": "k[i:i]",
        "v[i : i + 1]": "v[i:i]",
    },
    "the scores are not scaled: divide q.k by the square root of head_dim": {"_gqa=True": "_gqa=True, scale=1.0"},
    "only each sequence's first block is read, but its row of the table has more": {": -(-n // block_size)]": ":1]"},
    "query head h reads KV head h // group, with group = H // H_kv; yours reads h % H_kv": {
        QUERY_AND_PAST: "*(past.transpose(0, 1).repeat(q.size(1) // k.size(1), 1, 1) for past in (keys, values))"
    },
    "the weighted sum uses cached keys, not cached values: the values are in v_cache": {
        "v_cache[blocks]": "k_cache[blocks]"
    },
    "every sequence reads the first sequence's blocks: its own row is block_table[i]": {"table[i,": "table[0,"},
}


def _draw_case(rng: Random) -> Batch:
    block_size, dtype = rng.choice((1, 3, 4, 8, 16)), rng.choice(("fp32", "fp32", "fp16", "bf16"))
    lengths = draw_lengths(rng, block_size, most=40)
    return Batch(lengths, rng.randint(1, 3), rng.randint(1, 3), rng.choice((2, 4, 6)), block_size, dtype)


CASES = [Batch([300], 1, 1, 4, 4, "fp32"), *LARGE_SCORES, *draw(_draw_case)]  # 75 blocks
AS_SOLVED = partial(solution, "05.3", torch=torch, F=F, BlockTable=object)
ATTENDED = attention_comparison(CASES, {why: AS_SOLVED(edits).attention for why, edits in ATTENTION_MISTAKES.items()})


COPIES = 6  # times the bytes of the sequences' own blocks that a call may copy
# Cached tokens of each sequence, and the question when a call copies more.
RAGGED = (
    ([1] * 15 + [248], "does a short sequence pay for the longest one?"),
    ([24] * 31 + [248], "does a sequence read more of its row than its own blocks, -(-n // block_size)?"),
)


@exercise("05.3", ATTENDED)
def paged_attention(answer: Any, model: Model) -> None:
    require_stage(answer, "BlockTable with an attention of its own", "attention")
    ATTENDED(answer.attention)
    require_tokens(answer, model)
    for lengths, question in RAGGED:
        case = paged_case(lengths, num_kv_heads=2, block_size=8, head_dim=4)
        own = 2 * case.k_cache[1:].nbytes  # K and V; block 0 belongs to no sequence
        pools = {name: getattr(case, name).repeat(2 * COPIES, 1, 1, 1) for name in ("k_cache", "v_cache")}
        case = case._replace(**pools)  # far larger than what the batch needs of them
        copied = bytes_copied(partial(answer.attention, *case)).copied
        if copied > COPIES * own:
            raise Wrong(
                f"right tokens, but a ragged batch copies {copied:,} bytes; its sequences' own blocks hold {own:,}, "
                f"and the budget is {COPIES} times that: {question}"
            )
    require_contract(answer)


# 05.4

register_piece("05.4")
