"""Checks of padding rows, for exercise 13.2: where they write, where they begin, what they read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np

from ..exercises.drawn import draw, require_all
from ..exercises.wrong import Wrong

INPUTS = "slot_mapping", "query_start", "context_lens", "block_tables"
STALE = 999  # tokens of context that an older step has left, more than any block of a case holds
LATE = 9_999  # where it has left a sequence's end

Mixed = tuple[list[int], int, int, int]  # new tokens of each sequence, padding rows, dummy block, block size


def require_filled(answer: Callable[..., object]) -> None:
    """Raise Wrong for the smallest batch whose padding rows write, begin or read where they must not."""
    require_all(MIXED, partial(_judge_filled, answer), _describe_mixed)


def _draw_mixed(rng: Random) -> Mixed:
    # Not 2 tokens: a count of sequences would be right by chance.
    new = [rng.choice((1, 1, 3, 5)) for _ in range(rng.randint(1, 4))]
    dummy_block = rng.randint(10, rng.choice((40, 40, 10**6)))  # its slots may need more than 16 bits
    return new, rng.randint(0, 5), dummy_block, rng.choice((1, 4, 8, 16, 256))


MIXED: list[Mixed] = [
    ([1], 1, 10, 4),
    ([3], 1, 10, 4),
    ([1, 3], 2, 12, 8),
    ([1, 1], 0, 10, 4),
    ([1, 3, 5] * 10, 300, 40, 16),
    *draw(_draw_mixed),
]


def _describe_mixed(new: list[int], missing: int, dummy_block: int, block_size: int) -> str:
    return (
        f"{len(new)} sequences with {new} new tokens, bucket={sum(new) + missing}, dummy_block={dummy_block}, "
        f"block_size={block_size}"
    )


def _written(new: list[int], room: int, block_size: int) -> dict[str, np.ndarray]:
    """Make the inputs of a batch, followed by what an older step has left there: blocks of running sequences."""
    num_seqs, num_tokens = len(new), sum(new)
    inputs = {
        "slot_mapping": np.arange(block_size, block_size + num_tokens + room),
        "query_start": np.full(num_seqs + room + 2, LATE),
        "context_lens": np.full(num_seqs + room + 1, STALE),
        "block_tables": np.arange(3 * (num_seqs + room + 1)).reshape(-1, 3) % 7 + 1,
    }
    inputs["query_start"][: num_seqs + 1] = np.cumsum([0, *new])
    inputs["context_lens"][:num_seqs] = new
    return {name: array.astype(np.int32) for name, array in inputs.items()}


def _judge_filled(answer: Callable[..., object], new: list[int], missing: int, dummy_block: int, size: int) -> None:
    num_seqs, num_tokens = len(new), sum(new)
    bucket = num_tokens + missing
    inputs, before = (_written(new, missing, size) for _ in range(2))
    handed = dict(inputs)
    answer(handed, num_seqs, num_tokens, bucket, dummy_block, size)
    for name in INPUTS:
        if handed.get(name) is not inputs[name]:
            raise Wrong(
                f"inputs[{name!r}] is another array now, but the graph reads the one that it was: write into that"
            )
    if missing and all(np.array_equal(inputs[name], before[name]) for name in INPUTS):
        raise Wrong("nothing in inputs has changed: write into its arrays")
    own = {"slot_mapping": num_tokens, "query_start": num_seqs + 1, "context_lens": num_seqs, "block_tables": num_seqs}
    for name, end in own.items():
        if not np.array_equal(inputs[name][:end], before[name][:end]):
            raise Wrong(f"{name}: the batch's own part, the first {end}, has changed")
    for i in range(missing):
        _judge_slot(num_tokens + i, int(inputs["slot_mapping"][num_tokens + i]), before, dummy_block, size)
    _judge_starts(inputs["query_start"], before["query_start"], num_seqs, num_tokens, missing)
    for row in range(num_seqs, num_seqs + missing):
        _judge_context(row, inputs, dummy_block, size)


def _judge_slot(row: int, slot: int, before: dict[str, np.ndarray], dummy_block: int, size: int) -> None:
    if slot // size == dummy_block:
        return
    why = f"in block {slot // size}; only the dummy block {dummy_block} belongs to no sequence"
    if slot == before["slot_mapping"][row]:
        why = "as an older step left it, and that slot may belong to a running sequence by now"
    elif slot == dummy_block:
        why = "but that is the number of the dummy block: a slot is block * block_size + offset"
    elif slot < 0:
        why = "and a negative index writes at the end of the pool"
    elif slot == 0:
        why = "but block 0 is given to sequences like any other"
    raise Wrong(f"slot_mapping: row {row} writes to slot {slot}, {why}")


def _judge_starts(got: np.ndarray, before: np.ndarray, num_seqs: int, num_tokens: int, missing: int) -> None:
    here = slice(num_seqs + 1, num_seqs + 1 + missing)
    want = num_tokens + np.arange(1, missing + 1)
    if np.array_equal(got[here], want):
        return
    why = "each padding sequence has one row"
    if np.array_equal(got[here], before[here]):
        why = "it does not continue after the batch, so the last rows belong to no sequence"
    elif got[num_seqs + 1] == num_tokens:
        why = f"sequence {num_seqs}, the first one of padding, begins and ends at {num_tokens}: it has no row"
    elif np.array_equal(got[here], num_seqs + np.arange(1, missing + 1)):
        why = f"it counts rows, and the batch has {num_tokens} rows of {num_seqs} sequences"
    raise Wrong(f"query_start: after the batch {got[here].tolist()}, expected {want.tolist()}: {why}")


def _judge_context(row: int, inputs: dict[str, np.ndarray], dummy_block: int, size: int) -> None:
    length, block = int(inputs["context_lens"][row]), int(inputs["block_tables"][row, 0])
    if length < 1:
        raise Wrong(
            f"context_lens: sequence {row} has {length}, expected 1: its own token is written, then attended to"
        )
    if length > size:
        stale = " of an older step" if length == STALE else ""
        raise Wrong(f"context_lens: sequence {row} reads {length} tokens{stale}, expected 1, its own")
    if block != dummy_block:
        raise Wrong(f"block_tables: sequence {row} reads block {block}, expected {dummy_block}, where its token is")
