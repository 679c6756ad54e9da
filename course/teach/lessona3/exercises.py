"""Checkers of a3: a rung each. What is right, what likely mistakes give, and cases with the edges on purpose."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from ..exercises.drawn import Case, draw, inputs
from . import paged_exercises as paged_exercises  # registers a3.7 and a3.8
from .rung_checks import in_memory, padded, register_rung, softmax_of
from .rungs import long_rows, matrix, power_of_two, values, vectors, weights

# a3.1 and a3.2


def _sum_of(times_x: float, times_y: float, n: int) -> Tensor:
    return times_x * vectors(n)["x"] + times_y * vectors(n)["y"]


SUM_MISTAKES = {
    "that is x: y is not added": lambda n, block: _sum_of(1, 0, n),
    "that is y: x is not added": lambda n, block: _sum_of(0, 1, n),
    "that is x + x": lambda n, block: _sum_of(2, 0, n),
    "that is x - y": lambda n, block: _sum_of(1, -1, n),
    "that is x * y": lambda n, block: vectors(n)["x"] * vectors(n)["y"],
}
FIRST_BLOCK = "every program loads the first block: program p's begins at p * BLOCK"


def _first_block(n: int, block: int) -> Tensor:
    return _sum_of(1, 1, n)[torch.arange(n) % block]


def _draw_whole(rng: Random) -> Case:
    block = rng.choice((2, 4, 8))
    return block * rng.randint(1, 4), block


def _draw_any(rng: Random) -> Case:
    block = rng.choice((2, 4, 8))
    return rng.randint(1, 3 * block), block


register_rung(
    "a3.1",
    [(2, 2), (4, 4), (4, 2), (12, 4), (32, 16), *draw(_draw_whole, 45)],
    lambda n, block: _sum_of(1, 1, n),
    SUM_MISTAKES | {FIRST_BLOCK: _first_block},
    inputs("n", "BLOCK"),
)
register_rung(
    "a3.2",
    [(1, 2), (2, 2), (3, 2), (4, 4), (5, 4), (17, 16), *draw(_draw_any, 44)],
    lambda n, block: _sum_of(1, 1, n),
    SUM_MISTAKES | {FIRST_BLOCK: _first_block},
    inputs("n", "BLOCK"),
)


# a3.3


def _draw_matrix(rng: Random) -> tuple[int, int]:
    return rng.randint(1, 4), rng.choice((1, 2, 4, 8, rng.randint(3, 9)))


def _describe_matrix(rows: int, columns: int) -> str:
    return f"x [{rows}, {columns}], COLUMNS={power_of_two(columns)}"


def _only_row_0(rows: int, columns: int) -> Tensor:
    return matrix(rows, columns).sum(1) * (torch.arange(rows) == 0)


def _no_column(rows: int, columns: int) -> Tensor:
    return torch.zeros(rows)


def _from_row_on(rows: int, columns: int) -> Tensor:
    x = matrix(rows, columns)
    return in_memory(x, (rows, columns), (1, 1)).sum(1)


register_rung(
    "a3.3",
    [(1, 1), (1, 3), (2, 3), (3, 1), (4, 4), (2, 5), *draw(_draw_matrix, 44)],
    lambda rows, columns: matrix(rows, columns).double().sum(1).float(),
    {
        "every program sums up the first row: row r begins at r * num_columns": lambda rows, columns: (
            matrix(rows, columns)[0].sum().expand(rows)
        ),
        "row r begins at r * num_columns, not at r": _from_row_on,
        "the last column is left out: column < num_columns": lambda rows, columns: matrix(rows, columns)[:, :-1].sum(1),
        "that is the mean: do not divide": lambda rows, columns: matrix(rows, columns).mean(1),
        "the mask compares the offset with num_columns: compare the column": _only_row_0,
        "the mask is the wrong way round: it must be True for the columns of x": _no_column,
        "that is the largest value of each row: the sum is tl.sum": lambda rows, columns: matrix(rows, columns).amax(1),
        "masked lanes are added as 1: other must be 0.0": lambda rows, columns: padded(
            matrix(rows, columns), power_of_two(columns), 1.0
        ).sum(1),
        "that is the sum of the whole matrix: a program has one row": lambda rows, columns: (
            matrix(rows, columns).sum().expand(rows)
        ),
    },
    _describe_matrix,
)


# a3.4

SCALES = ((1.0, 0.0), (1.0, 0.0), (1.0, -200.0), (1.0, -400.0), (1.0, 200.0), (100.0, 0.0))


def _softmax_with_zeros(x: Tensor, columns: int) -> Tensor:
    return softmax_of(padded(x, columns))[:, : x.size(1)]


register_rung(
    "a3.4",
    [
        (1, 1, 1.0, 0.0),
        (1, 3, 1.0, 0.0),
        (2, 3, 1.0, 0.0),
        (2, 4, 1.0, 0.0),
        (2, 4, 1.0, 200.0),
        (2, 4, 1.0, -200.0),
        (2, 5, 1.0, -200.0),
        (2, 5, 1.0, -400.0),
        *draw(lambda rng: (*_draw_matrix(rng), *rng.choice(SCALES)), 42),
    ],
    lambda *case: softmax_of(matrix(*case)),
    {
        "masked lanes take part: with other=-inf they are never the largest, and their exp is 0": lambda *case: (
            _softmax_with_zeros(matrix(*case), power_of_two(case[1]))
        ),
        "it is not divided by the sum": lambda *case: torch.exp(matrix(*case) - matrix(*case).amax(1, keepdim=True)),
        "every program loads the first row: row r begins at r * num_columns": lambda *case: softmax_of(matrix(*case))[
            :1
        ].expand(case[0], case[1]),
        "that is the logarithm of the softmax": lambda *case: softmax_of(matrix(*case)).log(),
        "divided by the sum of all rows: each row has its own": lambda *case: softmax_of(
            matrix(*case).view(1, -1)
        ).view(case[0], case[1]),
        "the last column is left out of the sum: column < num_columns": lambda *case: torch.exp(
            matrix(*case) - matrix(*case)[:, :-1].logsumexp(1, keepdim=True)
        ),
    },
    lambda rows, columns, scale, shift: (
        f"{_describe_matrix(rows, columns)}, values of about {scale:g} around {shift:g}"
    ),
    if_nan="exp overflows above 88, and is 0 far below 0: subtract the row's largest value first",
)


# a3.5

GAPPED = ("wide", "every other column")
DRAWN_LAYOUTS = ("contiguous", "transposed", "transposed", *GAPPED)


def _product(w: Tensor, columns: int) -> Tensor:
    return (w.double() @ values(columns, seed=columns).double()).float()


def _with_strides(rows: int, columns: int, layout: str, strides: tuple[int, int]) -> Tensor:
    return _product(in_memory(weights(rows, columns, layout), (rows, columns), strides), columns)


def _swapped(rows: int, columns: int, layout: str, tile: int) -> Tensor:
    row, column = weights(rows, columns, layout).stride()
    return _with_strides(rows, columns, layout, (column, row))


def _offset_below_columns(rows: int, columns: int, layout: str, tile: int) -> Tensor:
    w = weights(rows, columns, layout)
    offsets = torch.arange(rows)[:, None] * w.stride(0) + torch.arange(columns) * w.stride(1)
    return _product(w * (offsets < columns), columns)


def _first_rows(rows: int, columns: int, layout: str, tile: int) -> Tensor:
    return _product(weights(rows, columns, layout), columns)[torch.arange(rows) % tile]


def _draw_product(rng: Random) -> Case:
    """Draw a case; views with gaps are larger, so that a wrong stride first reads other elements, and not a gap."""
    layout = rng.choice(DRAWN_LAYOUTS)
    most = rng.randint(4, 6), rng.randint(4, 5)
    rows, columns = most if layout in GAPPED else (rng.randint(1, 6), rng.randint(1, 5))
    return rows, columns, layout, rng.choice((2, 4))


register_rung(
    "a3.5",
    [
        (1, 1, "contiguous", 1),
        (2, 2, "contiguous", 2),
        (2, 3, "contiguous", 2),
        (3, 2, "transposed", 2),
        (5, 3, "transposed", 2),
        (4, 4, "wide", 4),
        (4, 4, "every other column", 2),
        *draw(_draw_product, 43),
    ],
    lambda rows, columns, layout, tile: _product(weights(rows, columns, layout), columns),
    {
        "no element of w is added up: is the mask the wrong way round?": lambda rows, columns, layout, tile: (
            torch.zeros(rows)
        ),
        "the strides are not used: element (r, c) lies at r * stride_row + c * stride_column": (
            lambda rows, columns, layout, tile: _with_strides(rows, columns, layout, (columns, 1))
        ),
        "the two strides are swapped": _swapped,
        "stride_column is taken as 1": lambda rows, columns, layout, tile: _with_strides(
            rows, columns, layout, (weights(rows, columns, layout).stride(0), 1)
        ),
        "the mask compares the offset with num_columns: compare the column": _offset_below_columns,
        "the rows are not multiplied by x": lambda rows, columns, layout, tile: weights(rows, columns, layout).sum(1),
        "every program loads the first ROWS rows: program p's begin at p * ROWS": _first_rows,
        "the last column is left out: column < num_columns": lambda rows, columns, layout, tile: (
            weights(rows, columns, layout)[:, :-1] @ values(columns, seed=columns)[:-1]
        ),
    },
    lambda rows, columns, layout, tile: (
        f"w [{rows}, {columns}] {layout}, strides {weights(rows, columns, layout).stride()}, ROWS={tile}"
    ),
)


# a3.6

NEW_TOP = "the new top is the larger of the old one and the tile's largest value"
KINDS = ("", "falling", "rising", "rising", "large", "far below 0")


def _draw_long(rng: Random) -> Case:
    tile = rng.choice((2, 4))
    return rng.choice((1, 1, 2)), rng.randint(1, 2 * tile + 1), rng.choice(KINDS), tile


def _not_rescaled(rows: int, columns: int, kind: str, tile: int) -> Tensor:
    x = long_rows(rows, columns, kind).double()
    top, total = torch.full((rows,), -torch.inf).double(), torch.zeros(rows).double()
    for part in x.split(tile, 1):
        top = torch.maximum(top, part.amax(1))
        total = total + torch.exp(part - top[:, None]).sum(1)
    return (torch.exp(x - top[:, None]) / total[:, None]).float()


def _total_of_last_tile(rows: int, columns: int, kind: str, tile: int) -> Tensor:
    weights_of = _undivided(rows, columns, kind, tile)
    return weights_of / weights_of.split(tile, 1)[-1].sum(1, keepdim=True)


def _undivided(rows: int, columns: int, kind: str, tile: int) -> Tensor:
    x = long_rows(rows, columns, kind)
    return torch.exp(x - x.amax(1, keepdim=True))


def _nan_of_long(rows: int, columns: int, kind: str, tile: int) -> str:
    if kind == "far below 0":
        return f"total is 0: top begins at -inf, and not at 0, and {NEW_TOP}"
    factor = "the factor exp(top - new_top) is not upside down"
    return f"exp overflows above 88, or total is 0: top begins at -inf, {factor}, and {NEW_TOP}"


def _tile_by_tile(rows: int, columns: int, kind: str, tile: int) -> Tensor:
    return torch.cat([softmax_of(part) for part in long_rows(rows, columns, kind).split(tile, 1)], 1)


register_rung(
    "a3.6",
    [
        (1, 1, "", 2),
        (1, 4, "", 4),
        (1, 4, "rising", 2),
        (2, 5, "rising", 4),
        (2, 8, "falling", 4),
        (1, 9, "large", 4),
        (1, 7, "far below 0", 4),
        *draw(_draw_long, 43),
    ],
    lambda rows, columns, kind, tile: softmax_of(long_rows(rows, columns, kind)),
    {
        "total is not rescaled: where the maximum grows, multiply it by exp(top - new_top) before top is replaced": (
            _not_rescaled
        ),
        "each tile is a softmax of its own: the maximum and the sum are of the whole row": _tile_by_tile,
        "masked lanes take part: with other=-inf they are never the largest, and their exp is 0": (
            lambda rows, columns, kind, tile: _softmax_with_zeros(
                long_rows(rows, columns, kind), -(-columns // tile) * tile
            )
        ),
        "it is not divided by total": _undivided,
        "total is that of the last tile: it must add up over all tiles": _total_of_last_tile,
        "every program loads the first row: row r begins at r * num_columns": lambda rows, columns, kind, tile: (
            softmax_of(long_rows(rows, columns, kind))[:1].expand(rows, columns)
        ),
    },
    lambda rows, columns, kind, tile: f"x [{rows}, {columns}]{kind and ', values ' + kind}, TILE={tile}",
    if_nan=_nan_of_long,
    budget={"x": 2, "out": 0},
)
