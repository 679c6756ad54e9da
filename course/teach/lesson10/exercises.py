"""Checkers of lesson 10: where a flat batch's tokens go, attention that writes first, and rows that are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.arguments import counted
from roseinfer.kernels.flat_cases import FlatCase, flat_case
from roseinfer.models import Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved_by_name
from ..exercises.attention_checks import explain_attention
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.piece_check import register_piece
from ..exercises.stage_checks import require_stage, require_tokens
from ..exercises.table_schedules import SCHEDULES, comes_and_goes, describe_blocks, play, schedule
from ..exercises.tensor_checks import explain_exactly, require_unchanged
from ..exercises.wrong import Wrong

# 10.1


def _draw_flat(rng: Random) -> tuple[list[list[int]], list[int], list[int], int]:
    size, num_seqs = rng.choice((1, 3, 4, 8, 16)), rng.randint(1, 4)
    cached = [rng.choice((0, 1, size - 1, size, rng.randint(0, 2 * size))) for _ in range(num_seqs)]
    new = [rng.choice((1, 1, 2, size + 1)) for _ in range(num_seqs)]
    used = [-(-(c + n) // size) + rng.randint(0, 1) for c, n in zip(cached, new, strict=True)]
    ids = iter(rng.sample(range(rng.choice((40, 40, 10**6)) + sum(used)), sum(used)))  # slots may need 32 bits
    return [[next(ids) for _ in range(n)] for n in used], cached, new, size


FLAT_MISTAKES = {
    "positions": {
        "every sequence counts from 0: the cached tokens come before the new ones": {
            "positions.append(position)": "positions.append(position - cached)"
        },
    },
    "slot_mapping": {
        "these are logical slots, as if a sequence began at the pool's first slot; its row names its blocks": {
            "blocks[column] * block_size + offset": "position"
        },
        "a block holds block_size tokens: its first slot is block * block_size": {" * block_size": ""},
    },
    "query_start": {
        "the number of all tokens is missing at the end: without it the last sequence has no end": {
            "accumulate(num_new)": "accumulate(num_new[:-1])"
        },
        "these are lengths: query_start is their running sum": {"[0, *accumulate(num_new)]": "num_new"},
    },
}
FLAT_BATCHES = [
    ([[0], *([*range(i + 40, i, -1)] for i in range(20))], [1] + [70] * 20, [1] + [10] * 20, 2),
    *draw(_draw_flat),
]
FLAT = as_solved_by_name("10.1", FLAT_MISTAKES)
register("10.1", Comparison(FLAT_BATCHES, FLAT, inputs("block_lists", "num_cached", "num_new", "block_size")))


# 10.2


def _draw_written(rng: Random) -> tuple[list[tuple[int, int]], dict[str, Any], int]:
    """Draw (cached, new) of each sequence, the shape as flat_case has it, and what q is multiplied by."""
    size = rng.choice((1, 3, 4, 8, 16))
    edges = (0, 1, size - 1, size, size + 1)
    sequences = [
        (rng.choice((*edges, rng.randint(0, 30))), rng.choice((1, 1, 2, size, rng.randint(1, 20))))
        for _ in range(rng.randint(1, 4))
    ]
    shape = {"num_kv_heads": rng.randint(1, 3), "group": rng.randint(1, 3), "head_dim": rng.choice((2, 4, 6))}
    dtype = rng.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16))
    return sequences, shape | {"block_size": size, "dtype": dtype}, 1


SHAPE = {"num_kv_heads": 2, "group": 2, "head_dim": 4, "block_size": 8}
WRITTEN = [
    ([(9, 2), (0, 3)], SHAPE, 128),  # scores of a few hundred: exp overflows past 88
    ([(9, 2), (1, 1)], SHAPE, 1),
    ([(9, 2), (1, 1)], SHAPE, 2),  # another batch of one shape
    ([(300, 2), (0, 150)], SHAPE, 1),
    *draw(_draw_written),
]


def _run_on(
    answer: Callable[..., Tensor], sequences: Any, shape: Any, times: int, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Run an answer on a batch in which sequences share the first block, if they have it cached in full.

    dtype: of the run, whose values are rounded to the batch's; None: the batch's own.
    """
    made = flat_case(sequences, shared_blocks=1, seed=times, **shape)
    made = made._replace(q=made.q * times)
    handed = FlatCase(*(tensor.clone() for tensor in made.with_own_pool(dtype)))
    before = {name: tensor.clone() for name, tensor in handed._asdict().items() if not name.endswith("_cache")}
    got = answer(*handed)
    require_unchanged(before.values(), (getattr(handed, name) for name in before), before)
    values = {"k_cache": handed.k_cache, "v_cache": handed.v_cache, "attention": got}
    return {name: value.to(made.q.dtype) for name, value in values.items()} if dtype else values


POOL_MISTAKES = {
    "k_cache": {
        "these are the values: write k there": {"offsets] = k": "offsets] = v"},
        "the pool is as it was: write to it, not to a copy": {"offsets] = k": "offsets]"},
    },
    "v_cache": {"these are the keys: write v there": {"offsets] = v": "offsets] = k"}},
}
ATTEND_MISTAKES = {
    "a token of a prompt sees those after it: it may see only itself and those before it": {
        "<= position[:, None]": "< length + 0 * position[:, None]"
    },
    "the causal mask begins at key 0: the first new token comes after all cached ones and sees them": {
        "torch.arange(length - queries.size(1), length)": "torch.arange(queries.size(1))"
    },
    "the scores are not scaled: divide q.k by the square root of head_dim": {"seen, enable": "seen, scale=1.0, enable"},
    "query head h reads KV head h // group, with group = H // H_kv; yours reads h % H_kv": {
        "flatten(1, 2)": "flatten(1, 2).repeat(q.size(1) // k.size(1), 1, 1)"
    },
}
SOLVED = partial(as_solved_by_name, "10.2", call=partial(_run_on, dtype=torch.float64), torch=torch, F=F)
NO_TOKEN = "where no token is: after context_lens[i] tokens, and in the slots of new tokens until they are written"
ATTENDED = SOLVED({"attention": ATTEND_MISTAKES}, partial(explain_attention, where_nan_lies=NO_TOKEN))
WRITTEN_TO = SOLVED(POOL_MISTAKES, explain_exactly)
register("10.2", Comparison(WRITTEN, WRITTEN_TO | ATTENDED, inputs("(cached, new)", "shape", "q times"), _run_on))


# 10.3


@exercise("10.3")
def kept_rows(answer: type[Stage], model: Model) -> None:
    require_stage(answer, "OneTable", "write_tables")
    _require_kept(answer, model)
    require_all(COMINGS_AND_GOINGS, lambda *calls: play(answer, model, calls, _come, _step), describe_blocks)
    require_tokens(answer, model)
    require_contract(answer, without=DTYPES_APART)


# A row holds block ids, whatever the dtype. Numba compiles attention for each dtype, which takes longer than all else.
DTYPES_APART = ("Half precision",)
COMINGS_AND_GOINGS = [
    # In row 1, which no prompt writes, A comes back with 1, 0, 2 for 0, 1, 2: as many, the same ones, the same last.
    schedule("A9 E1 EA -A B1 C1 D1 -D -B -C A9 EA"),
    # And with 1 to 4, 0, 6 to 9 for 1 to 9: the same first four, and the same last.
    schedule("E1 A33 EA -A B13 C1 D13 -D -E -B A33 CA"),
    comes_and_goes("EA"),
    *SCHEDULES,
]


def _come(stage: Any, seq: Sequence, num_tokens: int) -> None:
    """Let a sequence come without a model: write the inputs of a prefill, and count its tokens as cached."""
    seq.num_cached_tokens = 0
    stage.tables.reserve({seq.seq_id: num_tokens})
    stage.write_tables([seq], [num_tokens])
    seq.num_cached_tokens = num_tokens


def _step(stage: Any, seqs: list[Sequence], when: str = "after the last of these calls") -> None:
    """Write the inputs of a decode step. Raises Wrong unless its table names each sequence's blocks."""
    stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
    stage.write_tables(seqs, [1] * len(seqs))
    for row, seq in enumerate(seqs):
        blocks = stage.tables.of(seq.seq_id, 0)
        got = stage.inputs_on_host["block_tables"][row, : len(blocks)].tolist()
        if got != blocks:
            raise Wrong(f"{when}, row {row} of the table begins with {got}, expected {blocks}, the sequence's blocks")
        seq.num_cached_tokens += 1


def _require_kept(answer: type[Stage], model: Model) -> None:
    """Raise Wrong if a step writes rows whose content is right already."""
    stage: Any = answer(model, num_blocks=100, block_size=4, max_num_seqs=40)
    seqs = [Sequence([0]) for _ in range(40)]
    for i, seq in enumerate(seqs):
        _come(stage, seq, 7 if i == 1 else 4)
    for when, batch, expected in (
        ("the first step of 40 sequences", seqs, 40),
        ("a step where one of 40 sequences takes a block", seqs, 1),
        ("a step where nothing changes", seqs, 0),
        ("a step without the batch's last sequence", seqs[:-1], 0),
    ):
        before = stage.rows_built
        _step(stage, batch, f"in {when}")
        if (rows := stage.rows_built - before) != expected:
            raise Wrong(
                f"{when} writes {counted(rows, 'row')}, expected {expected}: write the rows that change, and no other. "
                "OneTable.write_row writes a row, and counts it in rows_built"
            )


# 10.4

register_piece("10.4")
