"""append_counts, slice_counts and gather_counts: what lines of code dispatch, beside what the first post counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from course.posts.data import post_table
from roseinfer.display.table import Table
from roseinfer.profiling import count_ops
from roseinfer.profiling.slice_rule import slice_dispatches

from ..lesson00.exercises import SHAPE
from ..lesson01.exercises import BLOCK_SIZE
from ..views.rows_table import table

POSTS_TORCH = (2, 6)  # inferred from its slices: any version before 2.9 has the same
ALL = slice(None)
Index = tuple[int | slice, ...] | slice


def append_counts(batch_sizes: Sequence[int]) -> Table:
    """Count the ops of stage 02's append on the post's torch for these batch sizes; say if the post counted them."""
    counted = post_table("000", "append_before").set_index("name")["n"]
    rows = []
    for size in batch_sizes:
        ops = append_ops(size)
        same = all(counted[name] == n for name, n in ops.items())
        rows.append({"batch": size, **ops, "is the post's": same})
    return table(rows, title="Ops of one append, by the size of the batch")


def append_ops(batch_size: int) -> dict[str, int]:
    """Count, by its lines of code, what stage 02's append dispatches on the post's torch."""
    heads, dim = SHAPE.num_kv_heads, SHAPE.head_dim
    cut = slice_dispatches((slice(1, 2), ALL, slice(9, 10), ALL), (batch_size, heads, 10, dim), POSTS_TORCH)
    index = slice_dispatches((0, ALL, 0, ALL), (1, heads, 1, dim), POSTS_TORCH)
    slot = slice_dispatches((ALL, 9, ALL), (heads, BLOCK_SIZE, dim), POSTS_TORCH)
    each = 2 * SHAPE.num_layers * batch_size  # K and V of each (layer, sequence)
    return {"aten::slice": each * (cut + index + slot), "aten::copy_": each, "aten::select": each * 3}


def slice_counts(x: Tensor, expressions: Mapping[str, Index]) -> Table:
    """Count the aten::slice calls of x[index]: measured on this torch, and by the rule that held before 2.9.

    expressions: maps the text of an expression to its index.
    """
    rows = []
    for text, index in expressions.items():
        parts = index if isinstance(index, tuple) else (index,)
        here = count_ops(partial(x.__getitem__, index))["aten::slice"]
        before = slice_dispatches(parts, tuple(x.shape), POSTS_TORCH)
        rows.append({"expression": text, "slices, this torch": here, "slices, before torch 2.9": before})
    return table(rows, title="What an index expression dispatches")


def gather_counts(batches: Mapping[str, Sequence[int]]) -> Table:
    """Count the slices of the preallocated gather for these cached lengths, on the post's torch and on this one."""
    counted = int(post_table("000", "gather_after").set_index("name").loc["aten::slice", "n"])
    rows = []
    for name, lengths in batches.items():
        slices = gather_slices(lengths, POSTS_TORCH)
        rows.append({"batch": name, "slices": slices, "is the post's": slices == counted})
        rows[-1]["on this torch"] = gather_slices(lengths)
    title = f"Slices of one gather on the post's torch; the post counted {counted}"
    return table(rows, ["on this torch"], title)


def gather_slices(lengths: Sequence[int], version: tuple[int, int] | None = None) -> int:
    """Count the slices of out[:, 0:n, :] = block[:, 0:n, :], for K and V of each (layer, sequence).

    lengths: shorter than a block. version: of torch; None: the one that runs here.
    """
    heads, dim = SHAPE.num_kv_heads, SHAPE.head_dim
    return sum(
        2 * SHAPE.num_layers * slice_dispatches((ALL, slice(0, n), ALL), (heads, width, dim), version)
        for n in lengths
        for width in (max(lengths), BLOCK_SIZE)
    )
