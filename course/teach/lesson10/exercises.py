"""Checkers of lesson 10: where a flat batch's tokens go, attention that writes first, and rows that are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course.contract.broken_promises import count
from roseinfer.kernels.flat_cases import FlatCase, flat_case
from roseinfer.models import Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved_by_name
from ..exercises.attention_checks import DTYPES, explain_attention
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.stage_checks import require_stage, require_tokens
from ..exercises.table_schedules import SCHEDULES, describe_schedule, play, require_long_life, schedule
from ..exercises.tensor_checks import explain_exactly, require_unchanged
from ..exercises.wrong import Wrong

# 10.1

Flat = tuple[list[list[int]], list[int], list[int], int]  # block lists, cached tokens, new tokens, block size


def _draw_flat(rng: Random) -> Flat:
    size, num_seqs = rng.choice((1, 3, 4, 8, 16)), rng.randint(1, 4)
    cached = [rng.choice((0, 1, size - 1, size, rng.randint(0, 2 * size))) for _ in range(num_seqs)]
    new = [rng.choice((1, 1, 2, size + 1)) for _ in range(num_seqs)]
    used = [-(-(c + n) // size) + rng.randint(0, 1) for c, n in zip(cached, new, strict=True)]
    ids = iter(rng.sample(range(rng.choice((40, 40, 10**6)) + sum(used)), sum(used)))  # slots may need 32 bits
    return [[next(ids) for _ in range(n)] for n in used], cached, new, size


FLAT_BATCHES: list[Flat] = [
    ([[3]], [2], [1], 4),  # one new token
    ([[2, 5], [2, 3]], [4, 4], [1, 1], 4),  # a block that two sequences share
    ([[0], *([*range(i + 40, i, -1)] for i in range(20))], [1] + [70] * 20, [1] + [10] * 20, 2),
    *draw(_draw_flat),
]
FLAT_MISTAKES = {
    "positions": {
        "every sequence counts from 0: the cached tokens come before the new ones": {
            "positions.append(position)": "positions.append(position - cached)"
        },
        "these are places in the flat batch, not in a sequence": {
            "positions.append(position)": "positions.append(len(positions))"
        },
    },
    "slot_mapping": {
        "these are logical slots, as if a sequence began at the pool's first slot; its row names its blocks": {
            "blocks[column] * block_size + offset": "position"
        },
        "these are block ids: a slot is block * block_size + offset": {" * block_size + offset": ""},
        "every token of a sequence goes to its first block": {"blocks[column]": "blocks[0]"},
        "a block holds block_size tokens: its first slot is block * block_size": {" * block_size": ""},
    },
    "query_start": {
        "the number of all tokens is missing at the end: without it the last sequence has no end": {
            "accumulate(num_new)": "accumulate(num_new[:-1])"
        },
        "these are lengths: query_start is their running sum": {"[0, *accumulate(num_new)]": "num_new"},
        "it counts new tokens only, not the cached ones": {
            "accumulate(num_new)": "accumulate(map(sum, zip(num_cached, num_new)))"
        },
    },
}
FLAT = as_solved_by_name("10.1", FLAT_MISTAKES)
register("10.1", Comparison(FLAT_BATCHES, FLAT, inputs("block_lists", "num_cached", "num_new", "block_size")))


# 10.2

# (cached, new) of each sequence, KV heads, query heads on each, head_dim, block size, dtype, what q is multiplied by
Written = tuple[list[tuple[int, int]], int, int, int, int, str, int]


def _draw_written(rng: Random) -> Written:
    size, dtype = rng.choice((1, 3, 4, 8, 16)), rng.choice(("fp32", "fp32", "fp16", "bf16"))
    edges = (0, 1, size - 1, size, size + 1)
    sequences = [
        (rng.choice((*edges, rng.randint(0, 30))), rng.choice((1, 1, 2, size, rng.randint(1, 20))))
        for _ in range(rng.randint(1, 4))
    ]
    return sequences, rng.randint(1, 3), rng.randint(1, 3), rng.choice((2, 4, 6)), size, dtype, 1


WRITTEN: list[Written] = [
    ([(0, 1)], 1, 1, 4, 8, "fp32", 1),
    ([(3, 1)], 1, 1, 4, 8, "fp32", 1),
    ([(9, 2), (0, 3)], 1, 2, 4, 8, "fp32", 128),  # scores of a few hundred: exp overflows past 88
    *(([(9, 2), (1, 1)], 2, 2, 4, 8, "fp32", times) for times in (1, 2)),  # two batches of one shape
    ([(300, 2), (0, 150)], 1, 1, 2, 4, "fp32", 1),
    *draw(_draw_written),
]
describe_written = inputs("(cached, new)", "H_kv", "H // H_kv", "D", "block_size", "dtype", "q times")


def _case_of(
    sequences: list[tuple[int, int]], heads: int, group: int, head_dim: int, block_size: int, dtype: str, times: int
) -> FlatCase:
    """Make a case in which all sequences share the first block, if they have it cached in full."""
    case = flat_case(
        sequences,
        num_kv_heads=heads,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        shared_blocks=1,
        seed=times,
        dtype=DTYPES[dtype],
    )
    return case._replace(q=case.q * times)


def _run_on(answer: Callable[..., Tensor], *case: Any, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Run an answer on a case. dtype: of the run, whose values are rounded to the case's; None: the case's own."""
    made = _case_of(*case)
    handed = FlatCase(*(tensor.clone() for tensor in made.with_own_pool(dtype)))
    before = {name: tensor.clone() for name, tensor in handed._asdict().items() if not name.endswith("_cache")}
    got = answer(*handed)
    require_unchanged(before.values(), (getattr(handed, name) for name in before), before)
    values = {"k_cache": handed.k_cache, "v_cache": handed.v_cache, "attention": got}
    return {name: value.to(made.q.dtype) for name, value in values.items()} if dtype else values


def _explain_attention(got: object, want: Tensor) -> str | None:
    no_token = (
        "where no token is: after a sequence's context_lens[i] tokens, and in the slots of new tokens until they are "
        "written"
    )
    return explain_attention(got, want, no_token)


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
    "a token does not see itself: its key and value are in the pool already": {"<= position": "< position"},
    "the scores are not scaled: divide q.k by the square root of head_dim": {"seen, enable": "seen, scale=1.0, enable"},
    "query head h reads KV head h // group, with group = H // H_kv; yours reads h % H_kv": {
        "flatten(1, 2)": "flatten(1, 2).repeat(q.size(1) // k.size(1), 1, 1)"
    },
    "only each sequence's first block is read: its row of the table names more": {
        ".long()\n        keys": ".long()[:1]\n        keys",
        "torch.arange(length) <=": "torch.arange(keys.size(1)) <=",
    },
}
SOLVED = partial(as_solved_by_name, "10.2", call=partial(_run_on, dtype=torch.float64), torch=torch, F=F)
WRITE_THEN_ATTEND = SOLVED(POOL_MISTAKES, explain_exactly) | SOLVED({"attention": ATTEND_MISTAKES}, _explain_attention)
register("10.2", Comparison(WRITTEN, WRITE_THEN_ATTEND, describe_written, call=_run_on))


# 10.3


@exercise("10.3")
def kept_rows(answer: type[Stage], model: Model) -> None:
    require_stage(answer, "OneTable", "write_tables")
    _require_kept(answer, model)
    require_all(COMINGS_AND_GOINGS, lambda *calls: play(answer, model, calls, _come, _step), describe_schedule)
    require_long_life(answer, model, _come, _step)
    require_tokens(answer, model)
    require_contract(answer, without=DTYPES_APART)


# A row holds block ids, whatever the dtype. Numba compiles attention for each dtype, which takes longer than all else.
DTYPES_APART = ("Half precision",)
# In row 1, which no prompt writes, A comes back with 1, 0, 2 for 0, 1, 2: as many, the same ones, the same last.
COMINGS_AND_GOINGS = [schedule("A9 E1 EA -A B1 C1 D1 -D -B -C A9 EA"), *SCHEDULES]


def _come(stage: Any, seq: Sequence, num_tokens: int) -> None:
    """Let a sequence come without a model: write the inputs of a prefill, and count its tokens as cached."""
    seq.num_cached_tokens = 0
    stage.tables.reserve({seq.seq_id: num_tokens})
    stage.write_tables([seq], [num_tokens])
    seq.num_cached_tokens = num_tokens


def _step(stage: Any, seqs: list[Sequence], when: str) -> None:
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
    for when, batch, least, most in (
        ("the first step of 40 sequences", seqs, 40, 40),
        ("a step where one of 40 sequences takes a block", seqs, 0, 1),
        ("a step where nothing changes", seqs, 0, 0),
        ("a step without the batch's last sequence", seqs[:-1], 0, 0),
    ):
        before = stage.rows_built
        _step(stage, batch, f"in {when}")
        if not least <= (rows := stage.rows_built - before) <= most:
            raise Wrong(
                f"{when} writes {count(rows, 'row')}, expected {most}: write the rows that change, and no other. "
                "OneTable.write_row writes a row, and counts it in rows_built"
            )
