"""Checkers of a3: a rung each. Cases with the edges on purpose, and likely mistakes as changes of the solution."""

from __future__ import annotations

from random import Random

from ..exercises.drawn import Case, draw, inputs
from .rung_checks import Mistakes, register_rung
from .rungs import RUNGS, power_of_two, weights

# a3.1 and a3.2


def _sum_mistakes(mask: str) -> Mistakes:
    x, y = f"tl.load(x + at{mask})", f"tl.load(y + at{mask})"
    return {
        "that is x: y is not added": {f" + {y}": ""},
        "that is y: x is not added": {f"{x} + ": ""},
        "that is x - y": {f" + {y}": f" - {y}"},
        "every program loads the first block: program p's begins at p * BLOCK": {
            "x + at": "x + at % BLOCK",
            "y + at": "y + at % BLOCK",
        },
    }


def _draw_whole(rng: Random) -> Case:
    block = rng.choice((2, 4, 8))
    return block * rng.randint(1, 4), block


def _draw_any(rng: Random) -> Case:
    block = rng.choice((2, 4, 8))
    return rng.randint(1, 3 * block), block


register_rung(
    RUNGS["a3.1"],
    [(32, 16), *draw(_draw_whole)],
    _sum_mistakes(mask=""),
    inputs("n", "BLOCK"),
)
register_rung(
    RUNGS["a3.2"],
    [(17, 16), (90, 4), *draw(_draw_any)],
    _sum_mistakes(mask=", mask=real"),
    inputs("n", "BLOCK"),
)


# a3.3 and a3.4

MASKED_LANES = "masked lanes take part: with other=-inf they are never the largest, and their exp is 0"
OFFSET_COMPARED = "the mask compares the offset with num_columns: compare the column"


def _draw_matrix(rng: Random) -> tuple[int, int]:
    return rng.randint(1, 4), rng.choice((1, 2, 4, 8, rng.randint(3, 9)))


def _describe_matrix(rows: int, columns: int) -> str:
    return f"x [{rows}, {columns}], COLUMNS={power_of_two(columns)}"


register_rung(
    RUNGS["a3.3"],
    [(1, 3), (2, 90), *draw(_draw_matrix)],
    {
        "every program sums up the first row: row r begins at r * num_columns": {"row * num_columns + ": ""},
        "row r begins at r * num_columns, not at r": {"row * num_columns": "row"},
        "the last column is left out: column < num_columns": {"< num_columns": "< num_columns - 1"},
        OFFSET_COMPARED: {"mask=column": "mask=row * num_columns + column"},
        "the mask is the wrong way round: it must be True for the columns of x": {"< num_columns": "< 0"},
    },
    _describe_matrix,
)

SCALES = ((1.0, 0.0), (1.0, 0.0), (1.0, -200.0), (1.0, -800.0), (1.0, 800.0), (100.0, 0.0))
register_rung(
    RUNGS["a3.4"],
    [
        (1, 3, 1.0, 0.0),
        (2, 5, 1.0, -800.0),  # masked lanes of a low number, and not low enough
        (2, 90, 1.0, 0.0),
        *draw(lambda rng: (*_draw_matrix(rng), *rng.choice(SCALES))),
    ],
    {
        MASKED_LANES: {'other=float("-inf")': "other=0.0"},
        "it is not divided by the sum": {" / tl.sum(weights, axis=0)": ""},
        "every program loads the first row: row r begins at r * num_columns": {"x + at": "x + column"},
    },
    lambda rows, columns, scale, shift: (
        f"{_describe_matrix(rows, columns)}, values of about {scale:g} around {shift:g}"
    ),
    if_nan="exp overflows above 88, and is 0 far below 0: subtract the row's largest value first",
)


# a3.5

GAPPED = ("wide", "every other column")
AT = "row[:, None] * stride_row + column[None, :] * stride_column"
REAL = "real_row[:, None] & real_column[None, :]"


def _draw_product(rng: Random) -> Case:
    """Draw a case; views with gaps are larger, so that a wrong stride first reads other elements, and not a gap."""
    layout = rng.choice(("contiguous", "transposed", "transposed", *GAPPED))
    most = rng.randint(4, 6), rng.randint(4, 5)
    rows, columns = most if layout in GAPPED else (rng.randint(1, 6), rng.randint(1, 5))
    return rows, columns, layout, rng.choice((2, 4))


register_rung(
    RUNGS["a3.5"],
    [
        (1, 1, "contiguous", 1),
        (2, 2, "contiguous", 2),
        (2, 3, "contiguous", 2),
        (3, 2, "transposed", 2),
        (5, 3, "transposed", 2),
        (4, 4, "wide", 4),
        (4, 4, "every other column", 2),
        (20, 40, "transposed", 2),
        *draw(_draw_product),
    ],
    {
        "no element of w is added up: is the mask the wrong way round?": {REAL: f"{REAL} & (column < 0)[None, :]"},
        "the strides are not used: element (r, c) lies at r * stride_row + c * stride_column": {
            AT: "row[:, None] * num_columns + column[None, :]"
        },
        "the two strides are swapped": {AT: "row[:, None] * stride_column + column[None, :] * stride_row"},
        "stride_column is taken as 1": {" * stride_column": ""},
        OFFSET_COMPARED: {REAL: "at < num_columns"},
        "every program loads the first ROWS rows: program p's begin at p * ROWS": {
            "row[:, None] * stride_row": "(row % ROWS)[:, None] * stride_row"
        },
    },
    lambda rows, columns, layout, tile: (
        f"w [{rows}, {columns}] {layout}, strides {weights(rows, columns, layout).stride()}, ROWS={tile}"
    ),
)


# a3.6

NAN_OF_TOP = (
    "exp overflows above 88, or total is 0: top begins at -inf, and not at 0, the factor exp(top - new_top) is not "
    "upside down, and the new top is the larger of the old one and the tile's largest value"
)
KINDS = ("", "falling", "rising", "rising", "large", "far below 0")


def _draw_long(rng: Random) -> Case:
    tile = rng.choice((2, 4))
    return rng.choice((1, 1, 2)), rng.randint(1, 2 * tile + 1), rng.choice(KINDS), tile


register_rung(
    RUNGS["a3.6"],
    [(1, 7, "far below 0", 4), (1, 70, "rising", 2), *draw(_draw_long)],
    {
        "total is not rescaled: where the maximum grows, multiply it by exp(top - new_top) before top is replaced": {
            "total * tl.exp(top - new_top)": "total"
        },
        "each tile is a softmax of its own: the maximum and the sum are of the whole row": {
            "mask=real)\n        tl.store": (
                'mask=real, other=float("-inf"))\n'
                "        top = tl.max(values, axis=0)\n"
                "        total = tl.sum(tl.exp(values - top), axis=0)\n"
                "        tl.store"
            )
        },
        MASKED_LANES: {'other=float("-inf")': "other=0.0"},
        "it is not divided by total": {" / total": ""},
        "total is that of the last tile: it must add up over all tiles": {"total * tl.exp(top - new_top) + ": ""},
    },
    lambda rows, columns, kind, tile: f"x [{rows}, {columns}]{kind and ', values ' + kind}, TILE={tile}",
    if_nan=NAN_OF_TOP,
    budget={"x": 2, "out": 0},
)


# a3.7 and a3.8

INDEX = "the index is used as the block's id: the id is what block_table holds at that index"
UNSCALED = "the scores are not multiplied by scale"


def _draw_scores(rng: Random) -> Case:
    block_size = rng.choice((2, 4))
    return rng.randint(1, 3 * block_size), block_size, 6 - block_size


register_rung(
    RUNGS["a3.7"],
    [(8, 8, 4), (40, 2, 4), *draw(_draw_scores)],
    {
        INDEX: {"tl.load(block_table + index)": "index"},
        "every program reads the first block: program p's id is block_table[p]": {"block_table + index": "block_table"},
        UNSCALED: {" * scale": ""},
        "the scores are multiplied by HEAD_DIM ** -0.5: the factor is the argument scale": {
            " * scale": " * HEAD_DIM**-0.5"
        },
        "block b begins at b * BLOCK_SIZE slots: slot s of it is at (b * BLOCK_SIZE + s) * HEAD_DIM": {
            "block * BLOCK_SIZE + slot": "block + slot"
        },
    },
    inputs("context_len", "BLOCK_SIZE", "HEAD_DIM"),
)


def _draw_attention(rng: Random) -> Case:
    block_size = rng.choice((2, 4))
    return rng.randint(1, 2 * block_size), block_size, 6 - block_size, rng.choice(KINDS)


def _describe_attention(context_len: int, block_size: int, head_dim: int, kind: str) -> str:
    case = f"context_len={context_len}, BLOCK_SIZE={block_size}, HEAD_DIM={head_dim}"
    return f"{case}{kind and ', scores ' + kind}"


register_rung(
    RUNGS["a3.8"],
    [
        (9, 4, 4, "large"),
        (3, 2, 4, "far below 0"),
        (40, 2, 4, "rising"),
        *draw(_draw_attention),
    ],
    {
        "acc is not rescaled: multiply it by exp(top - new_top) before top is replaced": {"acc * shrink": "acc"},
        "total and acc are not rescaled: multiply both by exp(top - new_top) before top is replaced": {" * shrink": ""},
        "slots after the last token take part in the softmax: their score must be -inf": {'float("-inf"))': "0.0)"},
        "it is not divided by total": {"acc / total": "acc"},
        "the weighted sum is of keys: the values are in v_cache": {"v_cache + at": "k_cache + at"},
        "only the first block is walked over: the loop goes to context_len": {
            "range(0, context_len,": "range(0, BLOCK_SIZE,"
        },
        INDEX: {"tl.load(block_table + start // BLOCK_SIZE)": "start // BLOCK_SIZE"},
        "every tile is the first block: the table's entry is start // BLOCK_SIZE": {" + start // BLOCK_SIZE": ""},
        UNSCALED: {" * scale": ""},
    },
    _describe_attention,
    if_nan=f"{NAN_OF_TOP}, and the loop and the mask go to context_len",
    budget={"k_cache": 1, "v_cache": 1},
)


# a3.9

SIDES = (1, 3, 15, 16, 17, 20, 33)


def _draw_matmul(rng: Random) -> Case:
    return rng.choice(SIDES), rng.choice(SIDES), rng.choice(SIDES)


def _describe_matmul(rows: int, columns: int, inner: int, *tile: int) -> str:
    tiles = inputs("ROWS", "COLUMNS", "INNER")(*tile) if tile else "tiles of 16"
    return f"x [{rows}, {inner}] @ w [{inner}, {columns}], {tiles}"


register_rung(
    RUNGS["a3.9"],
    [(1, 1, 1), (16, 16, 16), (17, 33, 20), (33, 17, 50), (33, 70, 100, 16, 32, 64), *draw(_draw_matmul)],
    {
        "only the first tiles along the inner dimension count: the loop goes to num_inner": {
            "range(0, num_inner,": "range(0, INNER,"
        },
        "only the last tiles along the inner dimension count: give tl.dot the total so far": {
            "w_tile, total,": "w_tile, tl.zeros([ROWS, COLUMNS], tl.float32),"
        },
        "every program loads the first ROWS rows of x: its own begin at p // across * ROWS": {
            "x_at = row[:, None]": "x_at = (row % ROWS)[:, None]"
        },
        "every program loads the first COLUMNS columns of w: its own begin at p % across * COLUMNS": {
            "+ column[None, :]\n        x_tile": "+ (column % COLUMNS)[None, :]\n        x_tile"
        },
        "w is read as if it were transposed: its element (k, c) lies at k * num_columns + c": {
            "inner[:, None] * num_columns + column[None, :]": "column[None, :] * num_inner + inner[:, None]"
        },
    },
    _describe_matmul,
    budget={"x": 1, "w": 1},
)
