"""The rungs of a3: for each the launch that a case makes, what it must give, and the case that its picture shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from roseinfer.kernels import triton_mode

from ..exercises.solutions import solution
from .kernels import copy_kernel
from .watch import Launch

Case = tuple[Any, ...]


@dataclass(frozen=True)
class Rung:
    """A rung. launch(*case) has the arguments of the kernel. shown: the case of the picture.

    right: computes `out`, in fp32, from the launch's arguments by their names.
    """

    id: str
    title: str
    launch: Callable[..., Launch]
    shown: Case
    right: Callable[..., Tensor]

    @property
    def kernel(self) -> Any:
        """The course's kernel: the notebook's own, or the solution."""
        return copy_kernel if self.id == "a3.0" else solved(self.id)


@cache
def solved(rung_id: str, changes: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return the kernel of the solution, or one with a mistake that these changes (before, after) make."""
    return solution(rung_id, dict(changes), triton_mode=triton_mode, tl=triton_mode.language())


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def values(*shape: int, seed: int = 0) -> Tensor:
    """Draw random values of a shape, the same ones for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unwritten(*shape: int) -> Tensor:
    """Make a result as it is before the launch: NaN, so that an element without a store is seen."""
    return torch.full(shape, torch.nan)


def copy(n: int, block: int) -> Launch:
    return Launch({"out": unwritten(n), "x": values(n)}, n // block, {"BLOCK": block})


def vectors(n: int) -> dict[str, Tensor]:
    return {"out": unwritten(n), "x": values(n, seed=n), "y": values(n, seed=n + 1000)}


def add(n: int, block: int) -> Launch:
    """Launch an addition of n numbers, a multiple of block."""
    return Launch(vectors(n), n // block, {"BLOCK": block})


def add_any(n: int, block: int) -> Launch:
    return Launch({**vectors(n), "n": n}, -(-n // block), {"BLOCK": block})


def matrix(rows: int, columns: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return scale * values(rows, columns, seed=100 * rows + columns) + shift


def row_sum(rows: int, columns: int) -> Launch:
    arguments = {"out": unwritten(rows), "x": matrix(rows, columns), "num_columns": columns}
    return Launch(arguments, rows, {"COLUMNS": power_of_two(columns)})


def softmax(rows: int, columns: int, scale: float = 1.0, shift: float = 0.0) -> Launch:
    arguments = {"out": unwritten(rows, columns), "x": matrix(rows, columns, scale, shift), "num_columns": columns}
    return Launch(arguments, rows, {"COLUMNS": power_of_two(columns)})


LAYOUTS = ("contiguous", "transposed", "wide", "every other column")


def weights(rows: int, columns: int, layout: str) -> Tensor:
    """Make a matrix [rows, columns] in this layout.

    Its rows lie one after another, are the columns of another matrix, or are cut from a wider or sparser one.
    """
    if layout == "transposed":
        return values(columns, rows, seed=rows + 50).T
    if layout == "wide":
        return values(rows, columns + 3, seed=rows)[:, :columns]
    if layout == "every other column":
        return values(rows, 2 * columns, seed=rows)[:, ::2]
    return values(rows, columns, seed=rows)


def matvec(rows: int, columns: int, layout: str, tile_rows: int) -> Launch:
    w = weights(rows, columns, layout)
    arguments = {
        "out": unwritten(rows),
        "w": w,
        "x": values(columns, seed=columns),
        "num_rows": rows,
        "num_columns": columns,
        "stride_row": w.stride(0),
        "stride_column": w.stride(1),
    }
    return Launch(arguments, -(-rows // tile_rows), {"ROWS": tile_rows, "COLUMNS": power_of_two(columns)})


def long_rows(rows: int, columns: int, kind: str) -> Tensor:
    """Make rows whose largest value comes early, late, or anywhere; large: of a few hundred, on either side of zero."""
    x = matrix(rows, columns)
    if kind == "falling":
        return x.sort(dim=1, descending=True).values
    if kind == "rising":
        return x.sort(dim=1).values
    return {"large": 200 * x, "far below 0": x - 800.0}.get(kind, x)


def long_softmax(rows: int, columns: int, kind: str, tile: int) -> Launch:
    arguments = {
        "out": unwritten(rows, columns),
        "x": long_rows(rows, columns, kind),
        "num_columns": columns,
    }
    return Launch(arguments, rows, {"TILE": tile})


@dataclass(frozen=True)
class Pool:
    """The KV cache of one head with one sequence's tokens.

    q [D], k_cache and v_cache [blocks, block_size, D], block_table [blocks in use]. Slots after the last token are NaN;
    the other blocks are another sequence's.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor


def scale_of(head_dim: int) -> float:
    """Return the argument `scale`: not HEAD_DIM ** -0.5, which a kernel could compute in place of reading it."""
    return float(0.7 * head_dim**-0.5)


def pool(context_len: int, block_size: int, head_dim: int, kind: str = "") -> Pool:
    """Draw a pool with a sequence of this length.

    kind: where the largest score lies, as in long_rows; large: the largest is a few hundred in size, on either side of
    zero; far below 0: all are around -500.
    """
    used = -(-context_len // block_size)
    generator = torch.Generator().manual_seed(context_len)
    q = torch.randn(head_dim, generator=generator)
    table = torch.arange(used)
    while (table == torch.arange(used)).any() or (used > 1 and (table.diff() > 0).all()):  # no id is its own index
        table = torch.randperm(used + 2, generator=generator)[:used]
    cache = torch.randn(2, used + 2, block_size, head_dim, generator=generator)
    keys = cache[0, table].flatten(0, 1)
    if kind in ("falling", "rising"):
        keys = keys[torch.argsort(keys @ q, descending=kind == "falling")]
    if kind == "far below 0":
        keys = keys - 500 / scale_of(head_dim) * q / q.square().sum()
    cache[0, table] = keys.view(used, block_size, head_dim)
    if (rest := used * block_size - context_len) > 0:
        cache[:, table[-1], block_size - rest :] = torch.nan
    return Pool(400 * q if kind == "large" else q, cache[0], cache[1], table.int())


def paged(case: Pool, context_len: int, out: Tensor, names: tuple[str, ...], programs: int) -> Launch:
    tensors = {"q": case.q, "k_cache": case.k_cache.clone(), "v_cache": case.v_cache.clone()}
    arguments = {
        "out": out,
        **{name: tensors[name] for name in names},
        "block_table": case.block_table,
        "context_len": context_len,
        "scale": scale_of(case.q.numel()),
    }
    block_size, head_dim = case.k_cache.shape[1:]
    return Launch(arguments, programs, {"HEAD_DIM": head_dim, "BLOCK_SIZE": block_size})


def paged_scores(context_len: int, block_size: int, head_dim: int) -> Launch:
    case = pool(context_len, block_size, head_dim)
    return paged(case, context_len, unwritten(context_len), ("q", "k_cache"), len(case.block_table))


def paged_attention(context_len: int, block_size: int, head_dim: int, kind: str = "") -> Launch:
    case = pool(context_len, block_size, head_dim, kind)
    return paged(case, context_len, unwritten(head_dim), ("q", "k_cache", "v_cache"), 1)


def matmul(rows: int, columns: int, inner: int, *tile: int) -> Launch:
    """Launch a product [rows, inner] @ [inner, columns]. tile: ROWS, COLUMNS and INNER, by default 16 each.

    16 is the least that tl.dot takes on a GPU; the interpreter takes less.
    """
    sides = tile or (16, 16, 16)
    arguments = {
        "out": unwritten(rows, columns),
        "x": matrix(rows, inner),
        "w": matrix(inner, columns, shift=0.5),
        "num_rows": rows,
        "num_columns": columns,
        "num_inner": inner,
    }
    programs = -(-rows // sides[0]) * -(-columns // sides[1])
    return Launch(arguments, programs, dict(zip(("ROWS", "COLUMNS", "INNER"), sides, strict=True)))


def tokens_of(cache: Tensor, block_table: Tensor) -> Tensor:
    """Gather the keys or values of the blocks in use, [T, D], in fp64; those after the last token are NaN."""
    return cache[block_table.long()].flatten(0, 1).double()


def _softmax(x: Tensor, **_: Any) -> Tensor:
    return x.double().softmax(1).float()


def _scores(q: Tensor, k_cache: Tensor, block_table: Tensor, context_len: int, scale: float, **_: Any) -> Tensor:
    return (tokens_of(k_cache, block_table)[:context_len] @ q.double() * scale).float()


def _attention(v_cache: Tensor, block_table: Tensor, context_len: int, **rest: Any) -> Tensor:
    values = tokens_of(v_cache, block_table)[:context_len]
    scores = _scores(block_table=block_table, context_len=context_len, **rest)
    return (scores.double().softmax(0) @ values).float()


RUNGS = {
    rung.id: rung
    for rung in (
        Rung("a3.0", "copy", copy, (12, 4), lambda x, **_: x),
        Rung("a3.1", "add", add, (12, 4), lambda x, y, **_: x + y),
        Rung("a3.2", "add, any length", add_any, (10, 4), lambda x, y, **_: x + y),
        Rung("a3.3", "row sum", row_sum, (4, 6), lambda x, **_: x.double().sum(1).float()),
        Rung("a3.4", "row softmax", softmax, (3, 6), _softmax),
        Rung(
            "a3.5",
            "matrix times vector",
            matvec,
            (5, 3, "transposed", 2),
            lambda w, x, **_: (w.double() @ x.double()).float(),
        ),
        Rung("a3.6", "softmax of long rows", long_softmax, (2, 10, "", 4), _softmax),
        Rung("a3.7", "scores through a block table", paged_scores, (10, 4, 4), _scores),
        Rung("a3.8", "paged attention", paged_attention, (10, 4, 4), _attention),
        Rung(
            "a3.9",
            "matrix product in tiles",
            matmul,
            (3, 6, 5, 2, 4, 2),
            lambda x, w, **_: (x.double() @ w.double()).float(),
        ),
    )
}


def find_rung(rung_id: str) -> Rung:
    """Find a rung by its id. Raises ValueError for an unknown one, naming those that exist."""
    if rung_id not in RUNGS:
        raise ValueError(f"rung must be one of {', '.join(RUNGS)}, got {rung_id!r}")
    return RUNGS[rung_id]
